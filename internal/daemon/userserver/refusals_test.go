package userserver

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/users"
)

// TestRefusalsAreCounted: in a minute, few are recorded of each user, and the rest as a number.
func TestRefusalsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r refusals
		began, recorded := time.Now(), 0
		for range 1000 {
			if r.add(ada, time.Now()) {
				recorded++
			}
		}
		if recorded != maxRecorded || !r.add(bert, time.Now()) {
			t.Errorf("%d refusals are recorded, want %d", recorded, maxRecorded)
		}
		time.Sleep(recordTime - 1)
		if over := r.over(time.Now()); len(over) > 0 || r.add(ada, time.Now()) {
			t.Errorf("the time is over too early: %v", over)
		}
		time.Sleep(time.Nanosecond)
		over := r.over(time.Now())
		if len(over) != 2 || over[ada] != (counter{began, 1001}) || over[bert] != (counter{began, 1}) {
			t.Errorf("counted are %v", over)
		}
		if len(r.of) != 0 || !r.add(ada, time.Now()) {
			t.Error("the next minute has no refusals of its own")
		}
	})
}

// refusedEntry is an entry of the audit log.
type refusedEntry struct {
	Action  string
	User    *uint32
	Times   int
	Since   time.Time
	Message string
}

// recorded are the refusals in the audit log.
func (s *Server) recorded(t *testing.T) (all []refusedEntry) {
	t.Helper()
	text, err := os.ReadFile(s.Node().Policy.Audit.File)
	daemontest.Must(t, err)
	for line := range strings.Lines(string(text)) {
		var e refusedEntry
		daemontest.Must(t, json.Unmarshal([]byte(line), &e))
		if e.Action == "refused" {
			all = append(all, e)
		}
	}
	return all
}

// TestRefusalsDoNotFillTheAuditLog: one user, also with thousands of uids, has few entries, and
// others have theirs. When gpuledgerd ends, the log has the number of the rest.
func TestRefusalsDoNotFillTheAuditLog(t *testing.T) {
	s := newServer(t)
	much := 99 * grant.GiB
	terms := users.Terms{Memory: much, GPUs: 1, Mode: grant.Limit, Owner: grant.Bearer}
	refuse := func(uid uint32, times int) {
		for i := range times {
			switch i % 3 {
			case 0: // by the quota or the node
				s.answer(t.Context(), uid, "POST", users.GrantPath, users.GrantRequest{Terms: terms,
					Secret: strings.Repeat("ab", 16)})
			case 1: // without a secret
				s.answer(t.Context(), uid, "POST", users.RunPath, users.GrantRequest{Terms: terms})
			case 2:
				s.answer(t.Context(), uid, "POST", users.UpdatePath,
					users.UpdateRequest{ID: "g-aaaaaaaaaaaa", Memory: &much})
			}
		}
	}
	refuse(ada, 30)
	refuse(bert, 3)
	for uid := range uint32(30) {
		refuse(100000+uid, 1)
	}
	if got := len(s.recorded(t)); got != 4+3+4 {
		t.Errorf("%d refusals are recorded, want 11", got)
	}
	s.Stop()
	all := s.recorded(t)[11:]
	more := func(user *uint32, message string) bool {
		return slices.ContainsFunc(all, func(e refusedEntry) bool {
			same := user == e.User || user != nil && e.User != nil && *user == *e.User
			return same && e.Times == 26 && !e.Since.IsZero() && e.Message == message
		})
	}
	uid := uint32(ada)
	if len(all) != 2 || !more(&uid, "26 more requests of this user were refused") ||
		!more(nil, "26 more requests of users without a known quota were refused") {
		t.Errorf("recorded are %+v, too", all)
	}
}
