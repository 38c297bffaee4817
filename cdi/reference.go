package cdi

import "github.com/gpuledger/gpuledger/internal/grant"

// Reference is the reference that a grant's file was written for: the one place besides its holder
// that has the secret. False where there is no such file, or it is not one of ours.
func (f Files) Reference(id grant.ID) (grant.Reference, bool) {
	r, found := look(f.GrantPath(id), grantMode).reference()
	return r, found && r.ID == id
}
