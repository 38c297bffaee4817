package users

import (
	"context"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Anybody stands for every user that has a name. Uids without one are those of containers (a user
// has thousands of subordinate ones): each of them would have a quota of its own.
const Anybody = "*"

// overflow is how the kernel shows a user that has no uid in the daemon's user namespace.
const overflow = 65534

// QuotaOf is the first quota that is a user's; nil for none. Groups are read from the system's
// database and not from the process, which could have left a group with a smaller quota.
func QuotaOf(quotas []grant.Quota, uid uint32) *grant.Quota {
	if uid == 0 || uid == overflow { // root, also that of a container; anybody at all
		return nil
	}
	known, isKnown := false, false
	named := func() bool {
		if !isKnown {
			known, isKnown = Name(uid) != strconv.FormatUint(uint64(uid), 10), true
		}
		return known
	}
	for i, q := range quotas {
		switch {
		case q.User == Anybody || q.Group == Anybody:
			if named() {
				return &quotas[i]
			}
		case q.User != "":
			if id, err := UID(q.User); err == nil && id == uid {
				return &quotas[i]
			}
		case named():
			if id, err := GID(q.Group); err == nil && slices.Contains(groupsOf(uid), id) {
				return &quotas[i]
			}
		}
	}
	return nil
}

// groupsOf are the groups of a user with a name. `id` asks the directory service, too.
func groupsOf(uid uint32) []uint32 {
	if last, known := groups.Load(uid); known && time.Since(last.(memberships).at) < time.Minute {
		return last.(memberships).gids
	}
	gids := lookUpGroups(uid)
	groups.Store(uid, memberships{gids, time.Now()})
	return gids
}

// groups are those that were looked up: whether grants are idle is asked all the time.
var groups sync.Map // of memberships, by uid

type memberships struct {
	gids []uint32
	at   time.Time
}

func lookUpGroups(uid uint32) []uint32 {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
	defer cancel()
	gids := []uint32{}
	text, err := exec.CommandContext(ctx, "id", "-G", "--", Name(uid)).Output()
	fields := strings.Fields(string(text))
	if err != nil {
		if u, e := user.LookupId(strconv.FormatUint(uint64(uid), 10)); e == nil {
			fields, _ = u.GroupIds()
		}
	}
	for _, field := range fields {
		if gid, err := strconv.ParseUint(field, 10, 32); err == nil {
			gids = append(gids, uint32(gid))
		}
	}
	return gids
}
