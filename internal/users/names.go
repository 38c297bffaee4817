// Package users is about the users of a node, who ask gpuledgerd for grants without being root. It
// has their names and numbers (names.go, lookup.go), the quota of a user by the configuration
// (quota.go), and the protocol by which a user's command asks gpuledgerd, with its client
// (protocol.go, client.go). Package daemon/userserver answers.
package users

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/moby/sys/user"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// UID is the uid of a user, by name or uid. *grant.NotFoundError if the node knows no such user,
// *LookupError if that is not known.
func UID(name string) (uint32, error) { return uidNamed(name, true) }

func uidNamed(name string, wait bool) (uint32, error) { return number("passwd", name, "user", wait) }

// gidNamed is the gid of a group, by name or gid. Errors are those of UID.
func gidNamed(name string, wait bool) (uint32, error) { return number("group", name, "group", wait) }

// number finds the number of a name. A number needs no entry: users of containers have none.
func number(database, name, kind string, wait bool) (uint32, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		if n == 1<<32-1 {
			return 0, &grant.UsageError{Message: fmt.Sprintf("%d is no %s's id: the kernel uses it for none",
				n, kind)}
		}
		return uint32(n), nil
	}
	found, err := numbers.get([2]string{database, name}, wait, func() ([]string, error) {
		return lookUpNumber(database, name)
	})
	if err != nil && len(found) == 0 {
		return 0, &LookupError{fmt.Sprintf("the %ss of this node", kind), err}
	}
	// While a name that had a number cannot be read, it has it still. So a quota of a user whom the
	// node knows no more, or for a moment, keeps no other user from a later quota.
	for _, text := range found {
		if n, err := strconv.ParseUint(text, 10, 32); err == nil {
			return uint32(n), nil
		}
	}
	return 0, &grant.NotFoundError{Message: fmt.Sprintf("this node has no %s %q",
		kind, grant.Printable(name))}
}

// numbers are those of users and groups, by database and name.
var numbers answers[[2]string]

// lookUpNumber returns nothing for a name that is not there. It does not use package os/user, which
// asks the directory services of nsswitch.conf in a program with cgo, and waits for them without
// bound; moby's package reads the files of /etc alone, and getent has a bound.
func lookUpNumber(database, name string) ([]string, error) {
	if database == "passwd" {
		if u, err := user.LookupUser(name); err == nil {
			return []string{strconv.Itoa(u.Uid)}, nil
		}
	} else if g, err := user.LookupGroup(name); err == nil {
		return []string{strconv.Itoa(g.Gid)}, nil
	}
	fields, err := getent(database, name)
	if len(fields) > 2 {
		return fields[2:3], nil
	}
	return nil, err
}

// Name is the name of a user, or the uid of one without a name.
func Name(uid uint32) string { return nameOrUID(uid, true) }

// KnownName is Name for a caller that must not wait for a directory service.
func KnownName(uid uint32) string { return nameOrUID(uid, false) }

func nameOrUID(uid uint32, wait bool) string {
	name, _ := nameOf(uid, wait)
	return cmp.Or(name, strconv.FormatUint(uint64(uid), 10))
}

// IsNamed reports whether a user has a name. The error is *LookupError. With one, named says
// whether the user had a name before.
func IsNamed(uid uint32) (named bool, err error) {
	name, err := nameOf(uid, true)
	return name != "", err
}

// IsNamedHere reports whether a user has a name, without asking a directory service. sure is false
// if only such a service can answer. Subordinate uids have no name in one (lookUpName).
func IsNamedHere(uid uint32) (named, sure bool) {
	if name, valid := names.last(uid); len(name) > 0 || valid {
		return len(name) > 0, true
	}
	if _, err := user.LookupUid(int(uid)); err == nil {
		return true, true
	}
	return false, subuids.has(uid)
}

// nameOf is the name of a user; "" for none. With an error it is the name from before.
func nameOf(uid uint32, wait bool) (name string, err error) {
	found, err := names.get(uid, wait, func() ([]string, error) { return lookUpName(uid) })
	if err != nil {
		err = &LookupError{"the users of this node", err}
	}
	if len(found) > 0 {
		name = found[0]
	}
	return name, err
}

var names answers[uint32]

// lookUpName asks no directory service about subordinate uids: a user could have it asked about all
// of them.
func lookUpName(uid uint32) ([]string, error) {
	if u, err := user.LookupUid(int(uid)); err == nil {
		return []string{u.Name}, nil
	}
	if subuids.has(uid) {
		return nil, nil
	}
	fields, err := getent("passwd", strconv.FormatUint(uint64(uid), 10))
	return fields[:min(len(fields), 1)], err
}
