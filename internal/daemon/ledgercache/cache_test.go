package ledgercache

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logs "github.com/sirupsen/logrus/hooks/test"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// cachedNode is a node with a cache of its ledger.
type cachedNode struct {
	*daemontest.TestNode
	t     *testing.T
	cache Cache
}

func newCachedNode(t *testing.T) *cachedNode {
	s := &cachedNode{TestNode: daemontest.NewNode(t), t: t}
	t.Cleanup(s.cache.Close)
	return s
}

// reads reads until the cache answers, and returns what is in it, as "grants/bindings".
func (s *cachedNode) reads() string {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		o, fresh, err := s.cache.Read(s.TestNode.Node, false)
		daemontest.Must(s.t, err)
		if !fresh {
			return counts(o)
		}
	}
	s.t.Fatal("it is read again and again")
	return ""
}

func counts(o grants.Overview) string {
	bindings := 0
	for _, g := range o.Grants {
		bindings += len(g.Bindings)
	}
	return fmt.Sprintf("%d/%d", len(o.Grants), bindings)
}

// TestCache: the next reading sees a change of the ledger, however recent, and the end of a
// container, which changes no file. An unchanged ledger is not read.
func TestCache(t *testing.T) {
	s := newCachedNode(t)
	first := s.Grant(0)
	if got := s.reads(); got != "1/0" {
		t.Fatalf("one grant is %s", got)
	}
	for i := range 20 { // several changes within one tick of the clock
		s.Grant(byte(i + 1))
		if o, _, err := s.cache.Read(s.TestNode.Node, false); err != nil ||
			counts(o) != fmt.Sprintf("%d/0", i+2) {
			t.Fatalf("%d grants are %s (%v)", i+2, counts(o), err)
		}
	}
	one, two := s.Start(first, "one"), s.Start(first, "two")
	if got := s.reads(); got != "21/2" || !s.cache.allWatched {
		t.Fatalf("with two containers %s, settled %v", got, s.cache.allWatched)
	}
	reading := s.cache.readings
	for range 100 {
		if got := s.reads(); got != "21/2" {
			t.Fatal(got)
		}
	}
	if s.cache.readings != reading {
		t.Errorf("it was read %d times and had not changed", s.cache.readings-reading)
	}
	// as if it was read before the last change, and the change left the stamps the same
	s.cache.read = s.cache.read.Add(-maxAgeWatched / 2)
	if _, fresh, err := s.cache.Read(s.TestNode.Node, false); err != nil || !fresh {
		t.Errorf("a reading of before the last change is believed (%v)", err)
	}
	s.reads()
	// as if the files changed while the clock was set back: they are older than the reading, and
	// differ
	s.cache.stamp = Stamp{}
	if _, fresh, err := s.cache.Read(s.TestNode.Node, false); err != nil || !fresh {
		t.Errorf("a reading of other files is believed (%v)", err)
	}
	daemontest.End(one)
	if got := s.reads(); got != "21/1" {
		t.Errorf("a container has ended: %s", got)
	}
	if s.cache.allWatched {
		t.Error("the binding of an ended container exists, and no check is due")
	}
	_ = two
}

// TestUnwatchedContainers: if the end of a container would not be noticed, Current reads the ledger
// each time.
func TestUnwatchedContainers(t *testing.T) {
	s := newCachedNode(t)
	s.cache.newExitWatcher = noExitWatcher
	one := s.Start(s.Grant(0), "one")
	if got := s.reads(); got != "1/1" || s.cache.allWatched {
		t.Fatalf("%s, settled %v", got, s.cache.allWatched)
	}
	daemontest.End(one)
	if o, err := s.cache.Current(s.TestNode.Node); err != nil || counts(o) != "1/0" {
		t.Errorf("the container has ended: %s (%v)", counts(o), err)
	}
}

// program binds a program of `gpuledger run` to a grant.
func (s *cachedNode) program(id grant.ID, creator grant.Process, cgroup string) {
	s.t.Helper()
	daemontest.Must(s.t, s.Ledger.Update(func(tx *ledger.Tx) error {
		return tx.Bind(grant.Binding{Grant: id, RuntimeRoot: s.Policy.RunDir,
			Container: "gpuledger-" + string(id), Creator: creator, Cgroups: []string{cgroup}})
	}))
}

// process starts a process.
func (s *cachedNode) process() (*exec.Cmd, grant.Process) {
	s.t.Helper()
	cmd := exec.Command("sleep", "1000")
	daemontest.Must(s.t, cmd.Start())
	s.t.Cleanup(func() { daemontest.End(cmd) })
	p, _, err := s.Host.Process(cmd.Process.Pid)
	daemontest.Must(s.t, err)
	return cmd, p
}

// unread wants 50 calls of Current to read nothing, and to return what is there.
func (s *cachedNode) unread(want string) {
	s.t.Helper()
	s.reads()
	before := s.cache.readings
	for range 50 {
		if o, err := s.cache.Current(s.TestNode.Node); err != nil || counts(o) != want {
			s.t.Fatalf("%s (%v), want %s", counts(o), err, want)
		}
	}
	if s.cache.readings != before || !s.cache.AllRun(s.TestNode.Node) {
		s.t.Errorf("%d readings in 50 calls, and settled %v", s.cache.readings-before, s.cache.allWatched)
	}
}

// current wants the next call of Current to return what is there.
func (s *cachedNode) current(want string) {
	s.t.Helper()
	if o, err := s.cache.Current(s.TestNode.Node); err != nil || counts(o) != want {
		s.t.Errorf("%s (%v), want %s", counts(o), err, want)
	}
}

// TestProgramsAreWatched: a program without a container has no first process on record. The ledger
// is not read while it runs, and its end is noticed at once.
func TestProgramsAreWatched(t *testing.T) {
	s := newCachedNode(t)
	var ids []grant.ID
	for i := range 25 {
		ids = append(ids, s.Grant(byte(i)))
	}
	one, ofOne := s.process()
	two, ofTwo := s.process()
	s.program(ids[0], ofOne, "/gpuledger-no-such-cgroup")
	s.program(ids[1], ofTwo, "/gpuledger-no-such-cgroup")
	s.program(ids[2], ofTwo, "/gpuledger-no-such-cgroup") // `gpuledger run ... gpuledger run ...`
	s.unread("25/3")
	daemontest.End(one)
	s.current("25/2")
	daemontest.End(two)
	s.current("25/0")
}

// TestWhatAProgramHasStartedIsWatched: its grant is in use until the last process in its cgroup has
// ended, or has left it.
func TestWhatAProgramHasStartedIsWatched(t *testing.T) {
	h := host.Default()
	root, _ := host.CgroupRoot(h)
	const name = "gpuledger-test-of-the-cache"
	if err := os.Mkdir(root+"/"+name, 0o755); err != nil {
		t.Skipf("SKIP: no cgroup can be made here: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(root + "/" + name) })
	ends := func(cmd *exec.Cmd) error { daemontest.End(cmd); return nil }
	leaves := func(cmd *exec.Cmd) error { return moveTo(root, cmd) }
	for way, c := range map[string]struct {
		leave   func(*exec.Cmd) error
		another bool // another process has the program's pid by now
	}{"it ends": {ends, false}, "it leaves": {leaves, false}, "it ends, of an old program": {ends, true}} {
		s := newCachedNode(t)
		creator, of := s.process()
		first, _ := s.process()
		last, _ := s.process()
		daemontest.Must(t, moveTo(root+"/"+name, first), moveTo(root+"/"+name, last))
		if c.another {
			of.Start--
		}
		s.program(s.Grant(0), of, "/"+name)
		s.unread("1/1")
		if !c.another {
			daemontest.End(creator)
		}
		s.current("1/1")
		s.unread("1/1")
		daemontest.End(first)
		s.unread("1/1")
		daemontest.Must(t, c.leave(last))
		if s.current("1/0"); t.Failed() {
			t.Fatal(way)
		}
	}
}

// moveTo moves a process into a cgroup.
func moveTo(dir string, cmd *exec.Cmd) error {
	return os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(cmd.Process.Pid)), 0)
}

func noExitWatcher() (*host.ExitWatcher, error) { return nil, host.ErrNoExitWatcher }

// TestContainersAreWatchedAgain: processes that could not be held, for example for lack of
// descriptors, are held as soon as possible; each change is logged once.
func TestContainersAreWatchedAgain(t *testing.T) {
	s := newCachedNode(t)
	log, logged := logs.NewNullLogger()
	s.cache.exitsProblem.Log, s.cache.newExitWatcher = log, noExitWatcher
	s.Start(s.Grant(0), "one")
	for range 3 {
		if _, _, err := s.cache.Read(s.TestNode.Node, true); err != nil || s.cache.allWatched {
			t.Fatalf("settled %v (%v)", s.cache.allWatched, err)
		}
	}
	if got := logged.AllEntries(); len(got) != 1 || got[0].Level != logrus.WarnLevel ||
		got[0].Data[logrus.ErrorKey] != host.ErrNoExitWatcher {
		t.Errorf("logged is %+v", got)
	}
	s.cache.newExitWatcher = nil
	for range 3 {
		if _, _, err := s.cache.Read(s.TestNode.Node, true); err != nil || !s.cache.allWatched {
			t.Fatalf("settled %v (%v)", s.cache.allWatched, err)
		}
	}
	if got := logged.AllEntries(); len(got) != 2 || got[1].Level != logrus.InfoLevel {
		t.Errorf("logged is %+v", got)
	}
}
