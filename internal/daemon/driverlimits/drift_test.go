package driverlimits

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/cgmem"
	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/daemon/ledgercache"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// fakeDriver is a manager with a driver that keeps limits in a map, and with a tree of plain
// directories as cgroups.
type fakeDriver struct {
	*Enforcer
	t    *testing.T
	n    *node.Node
	has  map[cgroupGPU]grant.Bytes // without: no limit
	lost map[string]bool           // GPUs
	hung bool
	sets int
}

func newFakeDriver(t *testing.T) *fakeDriver {
	h := host.Default()
	h.Sys = t.TempDir()
	p := grant.Policy{RunDir: daemontest.ShortDir(t), StateDir: t.TempDir()}
	p.Audit.File, p.Audit.Keep = filepath.Join(p.StateDir, "audit.jsonl"), 4
	daemontest.Must(t, os.WriteFile(filepath.Join(p.RunDir, "lock"), nil, 0o600))
	s := &fakeDriver{t: t, has: map[cgroupGPU]grant.Bytes{}, lost: map[string]bool{}}
	s.n = &node.Node{Host: h, Policy: p, Ledger: ledger.Open(ledger.Options{
		State: p.StateDir, Run: p.RunDir, Host: h})}
	log := logrus.New()
	log.SetOutput(io.Discard)
	s.Enforcer = &Enforcer{node: func() *node.Node { return s.n }, driver: s,
		cache: &ledgercache.Cache{}, log: log}
	t.Cleanup(s.socket.close)
	daemontest.Must(t, s.load(s.n))
	return s
}

func (s *fakeDriver) Close() {}

func (s *fakeDriver) Limit(_ context.Context, _ grant.Source,
	asks []grant.CgroupLimit) (answers []grant.CgroupLimit, err error) {
	if s.hung {
		return nil, errors.New("NVML has not answered for 5s")
	}
	for _, a := range asks {
		at := cgroupGPUOf(a)
		switch {
		case s.lost[a.GPU]:
			a.Error = "cannot find GPU " + a.GPU + ": GPU is lost"
		case a.Set:
			s.has[at] = a.Hard
			s.sets++
		default:
			if a.Hard = grant.NoLimit; s.has[at] != 0 {
				a.Hard = s.has[at]
			}
		}
		answers = append(answers, a)
	}
	return answers, nil
}

// limited is a container's cgroup with limits of 1 GiB of each GPU, set and recorded.
func (s *fakeDriver) limited(container string, gpus ...string) limitedCgroup {
	s.t.Helper()
	f := limitedCgroup{Cgroup: "/" + container, Grant: grant.ID("g-" + strings.Repeat(container[:1], 12)),
		RuntimeRoot: "/run/none", Container: container}
	for i, gpu := range gpus {
		f.GPUs = append(f.GPUs, grant.Share{UUID: gpu, Index: i, Memory: grant.GiB})
		s.has[cgroupGPU{f.dir(s.n.Host), gpu}] = grant.GiB
	}
	daemontest.Must(s.t, os.MkdirAll(f.dir(s.n.Host), 0o755))
	s.populate(f, true)
	var err error
	f.Inode, err = inodeOf(f.dir(s.n.Host))
	daemontest.Must(s.t, err)
	daemontest.Must(s.t, s.save(s.n, append(s.known[:len(s.known):len(s.known)], f)))
	f.GPUs = slices.Clone(f.GPUs) // for tests that change the ledger
	return f
}

func (s *fakeDriver) populate(f limitedCgroup, populated bool) {
	word := map[bool]string{true: "populated 1\n", false: "populated 0\n"}[populated]
	daemontest.Must(s.t, os.WriteFile(filepath.Join(f.dir(s.n.Host), "cgroup.events"), []byte(word), 0o644))
}

func (s *fakeDriver) set(f limitedCgroup, gpu string, b grant.Bytes) {
	s.has[cgroupGPU{f.dir(s.n.Host), gpu}] = b
}

func (s *fakeDriver) want(what string, f limitedCgroup, gpu string, b grant.Bytes) {
	s.t.Helper()
	if got := s.has[cgroupGPU{f.dir(s.n.Host), gpu}]; got != b {
		s.t.Errorf("%s: the limit of %s on %s is %s, want %s", what, f.Container, gpu, got, b)
	}
}

func (s *fakeDriver) passes() error {
	_, err := s.check(context.Background(), s.n, true)
	return err
}

func (s *fakeDriver) logs(word string) int {
	data, _ := os.ReadFile(s.n.Policy.Audit.File)
	return bytes.Count(data, []byte(`"action":"`+word+`"`))
}

// entered puts the grant and the container of a cgroup into the ledger.
func (s *fakeDriver) entered(f limitedCgroup, driven bool) {
	s.t.Helper()
	self, err := s.n.Host.Self()
	daemontest.Must(s.t, err)
	daemontest.Must(s.t, s.n.Ledger.Update(func(tx *ledger.Tx) error {
		g := grant.Grant{ID: f.Grant, Owner: grant.Bearer, Mode: grant.Limit, Strength: grant.StrengthLibrary,
			GPUs: f.GPUs, Secret: grant.SecretHash(strings.Repeat("a", 32)), Created: time.Now()}
		return errors.Join(tx.Put(g), tx.Bind(grant.Binding{
			Grant: f.Grant, RuntimeRoot: f.RuntimeRoot, Container: f.Container,
			Creator: self, Driven: driven}))
	}))
}

// TestOneFailureStopsNoOtherLimit: a lost GPU does not keep limits on others from being set,
// checked and removed.
func TestOneFailureStopsNoOtherLimit(t *testing.T) {
	s := newFakeDriver(t)
	s.lost["GPU-lost"] = true
	empty, gone, live, half := s.limited("empty", "GPU-0", "GPU-lost"), s.limited("gone", "GPU-0"),
		s.limited("live", "GPU-0"), s.limited("half", "GPU-lost", "GPU-1")
	s.populate(empty, false)
	s.populate(gone, false)
	for range 3 {
		s.set(live, "GPU-0", 9*grant.GiB)
		s.set(half, "GPU-1", 9*grant.GiB)
		err := s.passes()
		if err == nil || strings.Count(err.Error(), "cannot find GPU GPU-lost: GPU is lost") != 2 ||
			!strings.Contains(err.Error(), "cannot take the driver's limits off: ") {
			t.Errorf("the pass returns %v", err)
		}
		s.want("live", live, "GPU-0", grant.GiB)
		s.want("of two GPUs", half, "GPU-1", grant.GiB)
		s.want("emptied", empty, "GPU-0", grant.NoLimit)
		s.want("gone", gone, "GPU-0", grant.NoLimit)
		if len(s.known) != 3 {
			t.Errorf("%d cgroups are known", len(s.known))
		}
	}
	daemontest.Must(t, os.RemoveAll(empty.dir(s.n.Host)))
	s.lost = nil
	if err := s.passes(); err != nil || len(s.known) != 2 {
		t.Errorf("without failures: %v, %d cgroups", err, len(s.known))
	}
}

// TestAPartlySetLimitIsRemoved: if one limit of a container cannot be set, the others are removed,
// at once or when the driver answers again.
func TestAPartlySetLimitIsRemoved(t *testing.T) {
	s := newFakeDriver(t)
	f := s.limited("c", "GPU-0", "GPU-1")
	daemontest.Must(t, s.save(s.n, nil)) // it is about to be created
	s.lost["GPU-1"] = true
	if err := s.limitOrUndo(context.Background(), s.n, f); err == nil ||
		!strings.Contains(err.Error(), "GPU is lost") {
		t.Errorf("it returns %v", err)
	}
	s.want("at once", f, "GPU-0", grant.NoLimit)
	for range 2 {
		if err := s.passes(); err == nil {
			t.Error("that the other limit cannot be removed is not reported")
		}
		s.want("not held", f, "GPU-0", grant.NoLimit)
	}
	s.lost = nil
	if err := s.passes(); err != nil || len(s.known) != 0 {
		t.Errorf("in the end: %v, %+v", err, s.known)
	}
	if s.driftCount.Load() > 0 {
		t.Error("the daemon's own change is reported as drift")
	}
}

// TestLimitsThatTheLedgerLacksAreRemoved: a new daemon goes by the ledger, even if its
// predecessor's driver failed.
func TestLimitsThatTheLedgerLacksAreRemoved(t *testing.T) {
	s := newFakeDriver(t)
	weak, held, forced := s.limited("weak", "GPU-0"), s.limited("held", "GPU-0"), s.limited("forced", "GPU-0")
	s.entered(weak, false)
	s.entered(held, true)
	for _, f := range []limitedCgroup{held, forced} {
		s.set(f, "GPU-0", 9*grant.GiB)
	}
	daemontest.Must(t, s.passes())
	s.want("without strength", weak, "GPU-0", grant.NoLimit)
	s.want("driven", held, "GPU-0", grant.GiB)
	s.want("whose grant is gone by force", forced, "GPU-0", grant.GiB)
	if len(s.known) != 2 {
		t.Errorf("%+v", s.known)
	}
}

// TestAChangeOfTheLedgerIsNoDrift: however often it is tried until the driver accepts it.
func TestAChangeOfTheLedgerIsNoDrift(t *testing.T) {
	s := newFakeDriver(t)
	f := s.limited("c", "GPU-0")
	f.GPUs[0].Memory = 2 * grant.GiB
	s.entered(f, true)
	s.lost["GPU-0"] = true
	if err := s.passes(); err == nil {
		t.Error("that the driver does not answer is not reported")
	}
	s.lost = nil
	for range 2 {
		daemontest.Must(t, s.passes())
	}
	s.want("after it", f, "GPU-0", 2*grant.GiB)
	if s.driftCount.Load() > 0 || s.logs("found") > 0 {
		t.Error("the daemon's own change is reported as drift")
	}
}

// TestTheSocketStaysOpen: for containers with limits, and for those already admitted when the
// policy gives new ones the shim.
func TestTheSocketStaysOpen(t *testing.T) {
	s := newFakeDriver(t)
	s.n.Policy.Enforcement.Limit = grant.LibraryBackend
	asked := func() error {
		_ = s.Ensure(context.Background())
		return cgmem.Ask(s.n.Policy.LimitSocket(), cgmem.Call{
			Op: cgmem.Apply, Grant: "g-cccccccccccc"}, time.Minute)
	}
	if err := asked(); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without containers: %v", err)
	}
	f := s.limited("c", "GPU-0")
	f.GPUs[0].Memory = 2 * grant.GiB
	s.entered(f, true)
	if err := asked(); err != nil {
		t.Errorf("with a limit: %v", err)
	}
	s.want("as in the ledger", f, "GPU-0", 2*grant.GiB)
	daemontest.Must(t, s.save(s.n, nil))
	if err := asked(); err == nil || !strings.Contains(err.Error(), "has set no limit for container") {
		t.Errorf("one that was admitted and is not limited yet: %v", err)
	}
	daemontest.Must(t, os.Remove(s.n.Policy.LimitSocket()))
	if err := asked(); err == nil || !strings.Contains(err.Error(), "has set no limit for container") {
		t.Errorf("the same, and the socket was removed: %v", err)
	}
}

// TestADriftIsReportedWhenItBeginsAndEnds: a change in every pass is counted each time, and does
// not fill the log.
func TestADriftIsReportedWhenItBeginsAndEnds(t *testing.T) {
	s := newFakeDriver(t)
	f := s.limited("c", "GPU-0")
	for range 100 {
		s.set(f, "GPU-0", grant.NoLimit)
		daemontest.Must(t, s.passes())
		s.want("at each pass", f, "GPU-0", grant.GiB)
	}
	if s.logs("found") != 1 || s.logs("over") != 0 || s.driftCount.Load() != 100 || len(s.Findings()) != 1 {
		t.Errorf("while it stands: found %d, over %d, counted %d, %v", s.logs("found"), s.logs("over"),
			s.driftCount.Load(), s.Findings())
	}
	for range 10 {
		daemontest.Must(t, s.passes())
	}
	if s.logs("found") != 1 || s.logs("over") != 1 || len(s.Findings()) != 0 {
		t.Errorf("when it is over: found %d, over %d, %v", s.logs("found"), s.logs("over"), s.Findings())
	}
}
