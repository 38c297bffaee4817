// Package users is about the users of a node, who ask gpuledgerd for grants without being root. It
// has their names and numbers (names.go, lookup.go), the quota of a user by the configuration
// (quota.go), and the protocol by which a user's command asks gpuledgerd, with its client
// (protocol.go, client.go). Package daemon/userserver answers.
package users

import (
	"cmp"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"

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
	text, err := numbers.get([2]string{database, name}, wait, func() (string, error) {
		return lookUpNumber(database, name)
	})
	if err != nil {
		return 0, &LookupError{fmt.Sprintf("the %ss of this node", kind), err}
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, &grant.NotFoundError{Message: fmt.Sprintf("this node has no %s %q",
			kind, grant.Printable(name))}
	}
	return uint32(n), nil
}

// numbers are those of users and groups, by database and name.
var numbers answers[[2]string, string]

// lookUpNumber returns "" for a name that is not there.
func lookUpNumber(database, name string) (string, error) {
	if database == "passwd" {
		if u, err := user.Lookup(name); err == nil {
			return u.Uid, nil
		}
	} else if g, err := user.LookupGroup(name); err == nil {
		return g.Gid, nil
	}
	fields, err := getent(database, name)
	if len(fields) > 2 {
		return fields[2], nil
	}
	return "", err
}

// Name is the name of a user, or the uid of one without a name.
func Name(uid uint32) string { return nameOrUID(uid, true) }

// KnownName is Name for a caller that must not wait for a directory service.
func KnownName(uid uint32) string { return nameOrUID(uid, false) }

func nameOrUID(uid uint32, wait bool) string {
	name, _ := nameOf(uid, wait)
	return cmp.Or(name, strconv.FormatUint(uint64(uid), 10))
}

// IsNamed reports whether a user has a name. The error is *LookupError.
func IsNamed(uid uint32) (bool, error) {
	name, err := nameOf(uid, true)
	return name != "", err
}

// IsNamedHere is IsNamed without asking a directory service. It is not sure of users whom only such
// a service may know. Subordinate uids are no such users: of these one user has thousands. A name
// may be one of some minutes ago.
func IsNamedHere(uid uint32) (named, sure bool) {
	if name, valid := names.last(uid); name != "" || valid {
		return name != "", true
	}
	if _, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil {
		return true, true
	}
	ranges, _ := os.ReadFile("/etc/subuid")
	return false, inRanges(string(ranges), uid)
}

// inRanges reports whether the text of a file as /etc/subuid (subuid(5)) has a uid.
func inRanges(text string, uid uint32) bool {
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) != 3 {
			continue
		}
		first, err := strconv.ParseUint(fields[1], 10, 32)
		count, e := strconv.ParseUint(fields[2], 10, 32)
		if n := uint64(uid); err == nil && e == nil && first <= n && n < first+count {
			return true
		}
	}
	return false
}

// nameOf is the name of a user; "" for none.
func nameOf(uid uint32, wait bool) (string, error) {
	name, err := names.get(uid, wait, func() (string, error) { return lookUpName(uid) })
	if err != nil {
		err = &LookupError{"the users of this node", err}
	}
	return name, err
}

var names answers[uint32, string]

func lookUpName(uid uint32) (string, error) {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username, nil
	}
	fields, err := getent("passwd", id)
	if len(fields) > 0 {
		return fields[0], nil
	}
	return "", err
}
