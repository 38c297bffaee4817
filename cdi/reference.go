package cdi

import "github.com/gpuledger/gpuledger/internal/grant"

// Reference returns the reference for which a grant's file was written. Only the file and the
// grant's user have the secret. It is false if there is no such file, or gpuledger did not write
// it.
func (f Files) Reference(id grant.ID) (grant.Reference, bool) {
	r, found := inspect(f.GrantPath(id), grantMode).reference()
	return r, found && r.ID == id
}
