package users

import (
	"errors"
	"fmt"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Unserved says why a quota of one user has no effect on any machine; "" if it may have one. It
// looks the user's name up.
func Unserved(q grant.Quota) string {
	if q.User == "" || q.User == Anybody {
		return ""
	}
	id, err := uidNamed(q.User, true)
	switch {
	case err != nil:
		return ""
	case id == 0:
		return fmt.Sprintf("user %q is root, who may request without limit: the quota has no effect", q.User)
	case id == overflow:
		return fmt.Sprintf("user %q has uid %d, which the kernel shows for users that it cannot name: the "+
			"quota has no effect", q.User, id)
	}
	return ""
}

// Unknown says that this node does not have the user or the group of a quota; "" if it does, or if
// that cannot be looked up now.
func Unknown(q grant.Quota) string {
	name, lookUp := q.User, uidNamed
	if name == "" {
		name, lookUp = q.Group, gidNamed
	}
	if name == Anybody {
		return ""
	}
	var missing *grant.NotFoundError
	if _, err := lookUp(name, true); errors.As(err, &missing) {
		return missing.Message + ": the quota is skipped"
	}
	return ""
}
