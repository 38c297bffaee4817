package userserver

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

// TestTurns: the changes of a user are made one after another and, after many at once, one a
// second. Those of others do not wait for them, and nothing is kept of users who are at rest.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns
		began := time.Now()
		takes := func(uid uint32, want time.Duration) (end func()) {
			t.Helper()
			end, err := all.take(t.Context(), uid)
			if waited := time.Since(began); err != nil || waited != want {
				t.Fatalf("user %d has its turn after %s, want %s (%v)", uid, waited, want, err)
			}
			return end
		}
		end := takes(ada, 0)
		next := make(chan func())
		go func() { next <- takes(ada, 0) }()
		synctest.Wait()
		select {
		case <-next:
			t.Fatal("two requests of a user have its turn")
		default:
		}
		takes(bert, 0)()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := all.take(gone, ada); err == nil {
			t.Error("a client that is gone has its turn")
		}
		end()
		(<-next)()
		for range changesAtOnce - 2 {
			takes(ada, 0)()
		}
		takes(ada, changeEvery)()
		takes(ada, 2*changeEvery)()
		for range 5 { // what is not made is not charged
			hurried, cancel := context.WithTimeout(t.Context(), changeEvery/10)
			if _, err := all.take(hurried, ada); err == nil {
				t.Error("a client that is gone has its turn")
			}
			cancel()
		}
		takes(ada, 3*changeEvery)()
		takes(bert, 3*changeEvery)()
		all.forget(time.Now())
		if len(all.of) != 2 {
			t.Errorf("%d users are kept, want both", len(all.of))
		}
		time.Sleep(changesAtOnce * changeEvery)
		all.forget(time.Now())
		if len(all.of) != 0 {
			t.Errorf("%d users are kept, want none", len(all.of))
		}
	})
}

// TestChangesTakeTurns: while a change of a user is made, no other one of the user is begun. Others
// are served, and so is what changes nothing.
func TestChangesTakeTurns(t *testing.T) {
	s := newServer(t)
	if got := s.asksFor(t.Context(), ada, "ab"); !strings.Contains(got, "granted g-") {
		t.Fatal(got)
	}
	id := s.granted(t, ada)[0]
	end, err := s.turns.take(t.Context(), ada)
	daemontest.Must(t, err)
	gone, cancel := context.WithCancel(t.Context())
	cancel() // so that it does not wait
	memory := 2 * grant.GiB
	for path, body := range map[string]any{users.ReleasePath: users.ReleaseRequest{ID: id},
		users.UpdatePath: users.UpdateRequest{ID: id, Memory: &memory}} {
		if got := s.answer(gone, ada, "POST", path, body); got != "" {
			t.Errorf("%s: %s", path, got)
		}
	}
	if got := s.asksFor(gone, ada, "cd"); got != "" {
		t.Errorf("ada is answered %s", got)
	}
	if got := s.asksFor(t.Context(), bert, "ab"); !strings.Contains(got, "granted g-") {
		t.Errorf("bert is answered %s", got)
	}
	if got := s.answer(t.Context(), ada, "GET", users.ViewPath, nil); !strings.Contains(got, string(id)) {
		t.Errorf("ada sees %s", got)
	}
	end()
	o, err := grants.Read(s.Node())
	if daemontest.Must(t, err); len(o.Grants) != 2 || o.Grants[0].Memory() != grant.GiB {
		t.Errorf("the ledger has %+v", o.Grants)
	}
	got := s.answer(t.Context(), ada, "POST", users.ReleasePath, users.ReleaseRequest{ID: id})
	if !strings.Contains(got, string(id)) || len(s.granted(t, ada)) != 0 {
		t.Errorf("ada is answered %s", got)
	}
}

// TestOnlyOwnersTakeTurns: a release of what the user does not have keeps nothing of the user, of
// whom there may be thousands.
func TestOnlyOwnersTakeTurns(t *testing.T) {
	s := newServer(t)
	s.asksFor(t.Context(), ada, "ab")
	for _, uid := range []uint32{0, bert, 100000, 100001} {
		release := users.ReleaseRequest{ID: s.granted(t, ada)[0]}
		got := s.answer(t.Context(), uid, "POST", users.ReleasePath, release)
		if !strings.Contains(got, "you have no grant") {
			t.Errorf("user %d is answered %s", uid, got)
		}
		change := users.UpdateRequest{ID: "g-aaaaaaaaaaaa", Memory: new(grant.Bytes)}
		s.answer(t.Context(), uid, "POST", users.UpdatePath, change)
		s.asksFor(t.Context(), uid, "cd")
	}
	if len(s.turns.of) != 2 {
		t.Errorf("%d users are kept, want those with a quota", len(s.turns.of))
	}
}

// TestAnUpdateIsJudgedWhenItIsMade: the quota has become smaller while it waited for its turn.
func TestAnUpdateIsJudgedWhenItIsMade(t *testing.T) {
	s := newServer(t)
	s.asksFor(t.Context(), ada, "ab")
	id := s.granted(t, ada)[0]
	end, err := s.turns.take(t.Context(), ada)
	daemontest.Must(t, err)
	before, reads := s.Node, 0
	less := *s.Node()
	less.Policy.Quotas = []grant.Quota{{User: fmt.Sprint(ada), Memory: grant.Size(2 * grant.GiB)}}
	s.Node = func() *node.Node { // the request reads the configuration, waits, and reads it again
		if reads++; reads == 1 {
			defer end()
			return before()
		}
		return &less
	}
	memory := 8 * grant.GiB
	got := s.answer(t.Context(), ada, "POST", users.UpdatePath, users.UpdateRequest{ID: id, Memory: &memory})
	s.Node = before
	o, err := grants.Read(s.Node())
	daemontest.Must(t, err)
	if o.Grants[0].Memory() != grant.GiB || !strings.Contains(got, "quota-exceeded") {
		t.Errorf("ada has %s, and is answered %s", o.Grants[0].Memory(), got)
	}
}
