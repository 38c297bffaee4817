package daemon

import (
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/daemon/ledgercache"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/internal/node"
)

// TestRemovalWaitsForAnEnd: bindings of containers that ended are removed in the next pass, and
// nothing is read while all run.
func TestRemovalWaitsForAnEnd(t *testing.T) {
	s := daemontest.NewNode(t)
	var cache ledgercache.Cache
	t.Cleanup(cache.Close)
	log := logrus.New()
	log.SetOutput(t.Output())
	r := &ledgerManager{cache: &cache, log: log}
	id := s.Grant(0)
	cmd := s.Start(id, "one")
	s.Start(id, "two")
	there := func() bool { return s.Ledger.Bindings.Has(s.Root, "one") }
	settle(t, &cache, s.Node)
	for range 3 {
		r.removeDeadBindings(s.Node)
	}
	if !cache.AllRun(s.Node) || !there() {
		t.Fatalf("a check is due while both run; the binding exists: %v", there())
	}
	daemontest.End(cmd)
	if cache.AllRun(s.Node) {
		t.Error("no check is due, and one has ended")
	}
	if r.removeDeadBindings(s.Node); there() {
		t.Error("the binding of a container that ended stays")
	}
	settle(t, &cache, s.Node)
	if r.removeDeadBindings(s.Node); !cache.AllRun(s.Node) || !s.Ledger.Bindings.Has(s.Root, "two") {
		t.Error("afterwards a check is still due, or the other one's binding is removed")
	}
}

// TestASoundLedgerIsCheckedRarely: a check that found no problem counts for five turns, while the
// ledger does not change and all containers run. A problem is checked again in every turn.
func TestASoundLedgerIsCheckedRarely(t *testing.T) {
	s := daemontest.NewNode(t)
	var cache ledgercache.Cache
	t.Cleanup(cache.Close)
	log := logrus.New()
	log.SetOutput(t.Output())
	r := &ledgerManager{cache: &cache, log: log, wait: func() time.Duration { return time.Second }}
	id := s.Grant(0)
	cmd := s.Start(id, "one")
	s.Start(id, "two")
	settle(t, &cache, s.Node) // until the last change is older than a tick
	turn, now := checkEvery*time.Second, time.Now()
	looked := func() bool { // at the whole ledger
		t.Helper()
		before := r.found.Checked
		daemontest.Must(t, r.check(s.Node, now))
		return r.found.Checked != before
	}
	if !looked() {
		t.Fatal("the first check is not due")
	}
	now = r.sound.began // which may be a while after it was asked for
	for i := range soundChecks - 1 {
		if now = now.Add(turn); looked() {
			t.Errorf("after %d turns it is checked, and nothing has changed", i+1)
		}
	}
	if now = now.Add(turn); !looked() {
		t.Errorf("after %d turns no check is due", soundChecks)
	}
	now = now.Add(turn)
	s.Grant(1)
	if !looked() {
		t.Error("there is another grant, and no check is due")
	}
	now = now.Add(turn)
	daemontest.End(cmd)
	if !looked() || s.Ledger.Bindings.Has(s.Root, "one") {
		t.Error("a container has ended, and no check is due")
	}
	stray := filepath.Join(s.Policy.StateDir, "grants", "stray")
	daemontest.Must(t, os.WriteFile(stray, nil, 0o600))
	for range 2 {
		now = now.Add(turn)
		if err := r.check(s.Node, now); err == nil {
			t.Error("the ledger is not sound, and that is not reported")
		}
	}
}

// TestAnUnrepairableRegionIsReportedAtOnce: what a container does to its region does not change the
// ledger, which stays sound. It is an error as long as the region stays so.
func TestAnUnrepairableRegionIsReportedAtOnce(t *testing.T) {
	s := daemontest.NewNode(t)
	var cache ledgercache.Cache
	t.Cleanup(cache.Close)
	log := logrus.New()
	log.SetOutput(t.Output())
	r := &ledgerManager{cache: &cache, log: log, wait: func() time.Duration { return time.Second }}
	id := s.Grant(0)
	dir := s.Policy.LimitsDir(id)
	daemontest.Must(t, os.MkdirAll(dir, 0o700), limits.Ensure(dir,
		[]grant.Share{{UUID: daemontest.GPU, Memory: grant.GiB}}, 0, nil))
	settle(t, &cache, s.Node) // until the last change is older than a tick
	turn, now := checkEvery*time.Second, time.Now()
	daemontest.Must(t, r.check(s.Node, now))

	daemontest.Must(t, os.Truncate(filepath.Join(dir, grant.RegionFile), 1<<20))
	held, err := os.Open(filepath.Join(dir, grant.RegionFile))
	daemontest.Must(t, err)
	defer held.Close()
	signal.Ignore(unix.SIGIO) // by which the kernel asks for a lease back
	defer signal.Reset(unix.SIGIO)
	if _, err := unix.FcntlInt(held.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		t.Skipf("this file system has no leases (%v): the report of a failed repair is not shown", err)
	}
	for i := range 2 {
		now = now.Add(turn)
		if sound := r.stillSound(s.Node, now); sound != (i == 0) {
			t.Errorf("turn %d: the ledger is believed to be sound: %v", i, sound)
		}
		if err := r.check(s.Node, now); err == nil || !strings.Contains(err.Error(), string(id)) ||
			r.Found().Problems != 1 {
			t.Errorf("a region that cannot be cut: %v, %d problems", err, r.Found().Problems)
		}
	}
	held.Close()
	now = now.Add(turn)
	if err := r.check(s.Node, now); err != nil || r.Found().Problems != 0 {
		t.Errorf("afterwards: %v, %d problems", err, r.Found().Problems)
	}
}

// settle reads until the cache answers: from then on the last change is older than a tick of the
// clock.
func settle(t *testing.T, cache *ledgercache.Cache, n *node.Node) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		_, fresh, err := cache.Read(n, false)
		if daemontest.Must(t, err); !fresh {
			return
		}
	}
	t.Fatal("it is read again and again")
}
