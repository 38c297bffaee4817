package mps

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/mpsstate"
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

// TestADaemonThatDoesNotEndIsToldAgain: the program that tells a daemon to end may not have reached
// it, and print that in words that gpuledgerd does not know.
func TestADaemonThatDoesNotEndIsToldAgain(t *testing.T) {
	ctx := context.Background()
	s := newStage(t)
	d := s.daemon("GPU-0")
	must(t, s.pass(ctx, d, true))
	s.asked(d)
	for i, c := range []struct {
		action   action
		reported bool
	}{{dismiss, false}, {awaitEnd, false}, {dismiss, true}, {reportNotEnded, true}, {dismiss, true}} {
		if c.action == dismiss && i > 0 { // the time that it may take is over
			d.toldToEnd, d.toldAgain = d.toldToEnd.Add(-endTimeout), d.toldAgain.Add(-endTimeout)
		}
		a := actionFor(d.facts(), false, false, d.now())
		err := d.apply(ctx, a, want{})
		if told := strings.Contains(s.asked(d), "quit"); a != c.action || told != (a == dismiss) ||
			(err != nil) != c.reported || err != nil && !strings.Contains(err.Error(), "still runs") {
			t.Errorf("pass %d: %s (%v), told to end: %t; want %s", i, a, err, told, c.action)
		}
	}
}

// TestAServerOfADaemonThatEnds is gpuledger's until it has ended. Then nothing is reported as lost,
// and the daemon can serve the next grant.
func TestAServerOfADaemonThatEnds(t *testing.T) {
	ctx := t.Context()
	s := newStage(t)
	d := s.daemon("GPU-0")
	end := s.serve(d)
	must(t, s.pass(ctx, d, true))
	server := d.state.Servers[0]
	must(t, s.pass(ctx, d, false))
	if asked := s.asked(d); !strings.Contains(asked, "quit") {
		t.Fatalf("it is not told to end: %s", asked)
	}
	for _, next := range []*daemon{d, s.again(d.name)} {
		if next.detectEnd() || !mpsstate.Serves(s.node.Host, s.node.Policy.RunDir, "GPU-0", server) {
			t.Errorf("while it ends its server is another's process: %+v", next.state)
		}
	}
	end()
	for _, next := range []*daemon{d, s.again(d.name)} {
		next.users = []boundContainer{{ID: "c"}}
		if next.detectEnd() || next.reportLost() != nil || len(next.state.Servers) > 0 {
			t.Errorf("its server has ended as it should: %+v", next.state)
		}
	}
	s.serve(d)
	must(t, s.pass(ctx, d, true))
	if d.state.Problem != "" || d.detectEnd() {
		t.Errorf("it serves the next grant: %+v", d.state)
	}
}

// TestOrderToEndIsForOneDaemon: a daemon that is started after another one was told to end was not
// told so itself. If it was, nothing would ever end it.
func TestOrderToEndIsForOneDaemon(t *testing.T) {
	s := newStage(t)
	d := s.again(grant.MPSName([]string{"GPU-0"}))
	d.toldToEnd = time.Now().Add(-time.Hour)
	if err := d.start(wanted("GPU-0")); err == nil {
		t.Error("it starts without NVIDIA's programs")
	}
	if !d.toldToEnd.IsZero() {
		t.Errorf("the next daemon counts as told to end at %s", d.toldToEnd)
	}
}

// TestUnreadableProcessMayRun: while the file with the daemon's process cannot be read, no other
// daemon is started.
func TestUnreadableProcessMayRun(t *testing.T) {
	s := newStage(t)
	d := s.daemon("GPU-0")
	file := filepath.Join(d.dir, processFile)
	must(t, os.Rename(file, file+".away"), os.Mkdir(file, 0o700))
	if !d.runs() {
		t.Error("a daemon whose process cannot be read counts as ended")
	}
	if err := d.apply(context.Background(), serve, wanted("GPU-0")); err == nil ||
		!strings.Contains(err.Error(), "cannot tell whether") {
		t.Errorf("the pass says %v", err)
	}
	must(t, os.Remove(file))
	if d.runs() {
		t.Error("without the file a daemon counts as running")
	}
	must(t, os.Rename(file+".away", file), s.pass(context.Background(), d, true))
}

// TestUnknownBootMayRun: while the kernel does not say which boot it is, a recorded process may
// run, and a launcher that has recorded it has come so far.
func TestUnknownBootMayRun(t *testing.T) {
	s := newStage(t)
	d := s.daemon("GPU-0")
	s.node.Host.Proc = t.TempDir()
	if !d.runs() {
		t.Error("a daemon of an unknown boot counts as ended")
	}
	must(t, d.awaitLauncher())
}
