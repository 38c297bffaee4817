package users

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpuledger/gpuledger/internal/host"
)

// subordinates are the subordinate uids of a node (subuid(5)): those of users in containers. A user
// has thousands, so the file is read only if it has changed.
type subordinates struct {
	path   string
	mu     sync.Mutex
	stamp  host.Stamp
	read   time.Time
	ranges []uidRange
}

type uidRange struct{ first, end uint64 }

var subuids = subordinates{path: "/etc/subuid"}

// has reports whether a uid is one of them. Of a file that cannot be read none is.
func (s *subordinates) has(uid uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if is, now := host.StampOf(s.path), time.Now(); s.stamp != is || !is.Before(s.read) {
		text, _ := os.ReadFile(s.path)
		s.stamp, s.read, s.ranges = is, now, parseRanges(string(text))
	}
	return slices.ContainsFunc(s.ranges, func(r uidRange) bool {
		return r.first <= uint64(uid) && uint64(uid) < r.end
	})
}

func parseRanges(text string) (all []uidRange) {
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) != 3 {
			continue
		}
		first, err := strconv.ParseUint(fields[1], 10, 32)
		count, e := strconv.ParseUint(fields[2], 10, 32)
		if err == nil && e == nil {
			all = append(all, uidRange{first, first + count})
		}
	}
	return all
}
