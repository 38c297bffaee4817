package userserver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

// TestAFloodOfReaders: of the requests of a user that read the ledger two are answered at a time.
// Those of others do not wait for them. Of a client that is gone nothing is answered.
func TestAFloodOfReaders(t *testing.T) {
	s := newServer(t)
	for path, ask := range map[string]func(context.Context, uint32) string{
		"view": func(ctx context.Context, user uint32) string {
			return s.answer(ctx, user, "GET", users.ViewPath, nil)
		},
		"explain": func(ctx context.Context, user uint32) string {
			return s.answer(ctx, user, "POST", users.ExplainPath, users.ExplainRequest{})
		},
		"a release of another's grant": func(ctx context.Context, user uint32) string {
			return s.answer(ctx, user, "POST", users.ReleasePath, users.ReleaseRequest{ID: "g-aaaaaaaaaaaa"})
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			reading, read, answers := make(chan bool, 100), make(chan bool), make(chan string, 100)
			s.Ledger = func(*node.Node) (grants.Overview, error) {
				reading <- true
				<-read
				return grants.Overview{}, errors.New("no ledger")
			}
			for range 5 {
				go func() { answers <- ask(t.Context(), ada) }()
			}
			synctest.Wait()
			if len(reading) != readsAtOnce {
				t.Errorf("%s: %d requests of ada read the ledger, want %d", path, len(reading), readsAtOnce)
			}
			before := len(reading)
			go func() { answers <- ask(t.Context(), bert) }()
			synctest.Wait()
			if len(reading) != before+1 {
				t.Errorf("%s: bert waits for ada", path)
			}
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			if len(reading) < 6 { // else it would wait for what is read
				if got := ask(gone, ada); got != "" {
					t.Errorf("%s: a client that is gone is answered %s", path, got)
				}
			}
			close(read)
			for range 6 {
				if got := <-answers; !strings.Contains(got, "no ledger") {
					t.Errorf("%s: the answer is %s", path, got)
				}
			}
			synctest.Wait()
			if len(s.reads.of) != 0 {
				t.Errorf("%s: %d users are kept", path, len(s.reads.of))
			}
		})
	}
}

// TestPoolsReadTogether: a user has thousands of subordinate uids, which share their connections.
func TestPoolsReadTogether(t *testing.T) {
	b := &bounded{open: map[pool]int{}}
	one, two := &counted{uid: 100000, of: b, in: unnamed}, &counted{uid: 100001, of: b, in: unnamed}
	if (peer{uid: 100000, counted: one}).pool() != (peer{uid: 100001, counted: two}).pool() {
		t.Error("two uids without a name are two pools")
	}
}
