package mps

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// TestDaemonStaysForANewGrant: a daemon is not told to end by a reading of the ledger that is older
// than a grant, and is ready again in the next pass.
func TestDaemonStaysForANewGrant(t *testing.T) {
	ctx := context.Background()
	s := newStage(t)
	d := s.daemon("GPU-0")
	must(t, s.pass(ctx, d, true))
	g := grant.Grant{ID: "g-abcdefghijkl", Owner: "bearer", Mode: grant.MPS, Compute: 25,
		Created: time.Now(), GPUs: []grant.Share{{UUID: "GPU-0", Memory: grant.GiB}}}
	must(t, s.node.Ledger.Update(func(tx *ledger.Tx) error { return tx.Put(g) }))
	s.asked(d)
	must(t, s.pass(ctx, d, false)) // the pass has read the ledger before
	if asked := s.asked(d); strings.Contains(asked, "quit") || !d.toldToEnd.IsZero() {
		t.Errorf("it was told to end: %s", asked)
	}
	must(t, s.pass(ctx, d, true))
	if d.state.Problem != "" {
		t.Errorf("it is not ready again: %s", d.state.Problem)
	}
	must(t, s.node.Ledger.Update(func(tx *ledger.Tx) error { return tx.Delete(g.ID) }),
		s.pass(ctx, d, false))
	if asked := s.asked(d); !strings.Contains(asked, "quit") {
		t.Errorf("without the grant it is asked %s", asked)
	}
}
