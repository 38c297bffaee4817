// Package users is about the users of a node, who ask gpuledgerd for grants without being root. It
// has their names and numbers (names.go), the quota of a user by the configuration (quota.go), and
// the protocol by which a user's command asks gpuledgerd, with its client (protocol.go, client.go).
// Package daemon/userserver answers.
package users

import (
	"context"
	"fmt"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// lookupTime bounds a look-up in a directory service.
const lookupTime = 2 * time.Second

// UID is the uid of a user, by name or uid. *grant.NotFoundError if the node knows no such user.
func UID(name string) (uint32, error) { return number("passwd", name, "user") }

// GID is the gid of a group, by name or gid.
func GID(name string) (uint32, error) { return number("group", name, "group") }

// number finds the number of a name. A number needs no entry: users of containers have none.
func number(database, name, kind string) (uint32, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		if n == 1<<32-1 {
			return 0, &grant.UsageError{Message: fmt.Sprintf("%d is no %s's id: the kernel uses it for none",
				n, kind)}
		}
		return uint32(n), nil
	}
	text := ""
	if database == "passwd" {
		if u, err := user.Lookup(name); err == nil {
			text = u.Uid
		}
	} else if g, err := user.LookupGroup(name); err == nil {
		text = g.Gid
	}
	if fields := getent(database, name); text == "" && len(fields) > 2 {
		text = fields[2]
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, &grant.NotFoundError{Message: fmt.Sprintf("this node has no %s %q",
			kind, grant.Printable(name))}
	}
	return uint32(n), nil
}

// Name is the name of a user, or the uid of one without a name.
func Name(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if last, known := names.Load(uid); known && time.Since(last.(named).at) < time.Minute {
		return last.(named).name
	}
	name := nameOf(id)
	names.Store(uid, named{name, time.Now()})
	return name
}

// names are those that were looked up: listings have the same few users again and again.
var names sync.Map // of named, by uid

type named struct {
	name string
	at   time.Time
}

func nameOf(id string) string {
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	if fields := getent("passwd", id); len(fields) > 0 && fields[0] != "" {
		return fields[0]
	}
	return id
}

// getent is an entry that package os/user may not find: without cgo it reads only the files of
// /etc, and users may come from a directory service.
func getent(database, key string) []string {
	if key == "" || key[0] == '-' {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	line, err := exec.CommandContext(ctx, "getent", database, key).Output()
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(line)), ":")
}
