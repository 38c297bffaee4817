package users

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/sys/user"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Anybody stands for every user that has a name. Uids without one are those of containers (a user
// has thousands of subordinate ones): each of them would have a quota of its own.
const Anybody = "*"

// overflow is how the kernel shows a user that has no uid in the daemon's user namespace.
const overflow = 65534

// QuotaOf is the first quota that is a user's; nil for none. Groups are read from the system's
// database and not from the process, which could have left a group with a smaller quota. The error
// is *LookupError: a quota that may be the user's is not skipped, since a later one may be larger.
func QuotaOf(quotas []grant.Quota, uid uint32) (*grant.Quota, error) {
	return quotaOf(quotas, uid, true)
}

// resolving has the users whose quotas are being read for callers of KnownQuotaOf.
var resolving sync.Map

// KnownQuotaOf is QuotaOf for a caller that must not wait for a directory service. The error wraps
// ErrNotYet, too, if the names and groups were not read yet. Then they are read meanwhile.
func KnownQuotaOf(quotas []grant.Quota, uid uint32) (*grant.Quota, error) {
	q, err := quotaOf(quotas, uid, false)
	if !errors.Is(err, ErrNotYet) {
		return q, err
	}
	if _, runs := resolving.LoadOrStore(uid, true); !runs {
		go func() {
			defer resolving.Delete(uid)
			_, _ = QuotaOf(quotas, uid)
		}()
	}
	return nil, err
}

func quotaOf(quotas []grant.Quota, uid uint32, wait bool) (*grant.Quota, error) {
	if uid == 0 || uid == overflow { // root, also that of a container; anybody at all
		return nil, nil
	}
	for i, q := range quotas {
		if is, err := isOf(q, uid, wait); err != nil {
			return nil, err
		} else if is {
			return &quotas[i], nil
		}
	}
	return nil, nil
}

func isOf(q grant.Quota, uid uint32, wait bool) (bool, error) {
	if q.User != "" && q.User != Anybody {
		id, err := uidNamed(q.User, wait)
		return err == nil && id == uid, ifUnknown(err)
	}
	name, err := nameOf(uid, wait)
	if err != nil || name == "" || q.User == Anybody || q.Group == Anybody {
		return name != "", err
	}
	id, err := gidNamed(q.Group, wait)
	if err != nil {
		return false, ifUnknown(err)
	}
	gids, err := groupsOf(uid, name, wait)
	return slices.Contains(gids, strconv.FormatUint(uint64(id), 10)), err
}

// ifUnknown is nil where an error says that there is no such user or group.
func ifUnknown(err error) error {
	var unknown *LookupError
	if errors.As(err, &unknown) {
		return err
	}
	return nil
}

// groupsOf are the gids of the groups of a user with a name. `id` asks the directory service, too.
func groupsOf(uid uint32, name string, wait bool) ([]string, error) {
	gids, err := groups.get(uid, wait, func() ([]string, error) { return lookUpGroups(name) })
	if err != nil {
		err = &LookupError{"the groups of user " + name, err}
	}
	return gids, err
}

var groups answers[uint32]

// groupsInFile are the gids of a user by the files of /etc.
func groupsInFile(name string) ([]string, error) {
	u, err := user.LookupUser(name)
	if err != nil {
		return nil, err
	}
	others, err := user.ParseGroupFileFilter("/etc/group", func(g user.Group) bool {
		return g.Gid != u.Gid && slices.Contains(g.List, name)
	})
	gids := []string{strconv.Itoa(u.Gid)}
	for _, g := range others {
		gids = append(gids, strconv.Itoa(g.Gid))
	}
	return gids, err
}

// lookUpGroups finds the groups of the files of /etc on a node without `id`, as getent does.
func lookUpGroups(name string) ([]string, error) {
	text, err := output("id", "-G", "--", name)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return groupsInFile(name)
	case err != nil:
		return nil, err
	}
	gids := strings.Fields(text)
	for _, gid := range gids {
		if n, err := strconv.ParseUint(gid, 10, 32); err != nil || strconv.FormatUint(n, 10) != gid {
			return nil, fmt.Errorf("`id -G` prints %q", grant.Printable(gid))
		}
	}
	return gids, nil
}
