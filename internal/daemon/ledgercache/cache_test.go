package ledgercache

import (
	"fmt"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logs "github.com/sirupsen/logrus/hooks/test"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
)

// cachedNode is a node with a cache of its ledger.
type cachedNode struct {
	*daemontest.Node
	t     *testing.T
	cache Cache
}

func newCachedNode(t *testing.T) *cachedNode {
	s := &cachedNode{Node: daemontest.NewNode(t), t: t}
	t.Cleanup(s.cache.Close)
	return s
}

// reads reads until the cache answers, and returns what is in it, as "grants/bindings".
func (s *cachedNode) reads() string {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		o, fresh, err := s.cache.Read(s.Node.Node, false)
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

// TestCache: a change of the ledger is seen in the next reading, however short ago it was, and so
// is the end of a container, which changes no file. An unchanged ledger is not read.
func TestCache(t *testing.T) {
	s := newCachedNode(t)
	first := s.Grant(0)
	if got := s.reads(); got != "1/0" {
		t.Fatalf("one grant is %s", got)
	}
	for i := range 20 { // more of them within one tick than can be told apart
		s.Grant(byte(i + 1))
		if o, _, err := s.cache.Read(s.Node.Node, false); err != nil ||
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
	// as if it had been read before the last change, and that had left the stamps the same
	s.cache.read = s.cache.read.Add(-maxAgeWatched / 2)
	if _, fresh, err := s.cache.Read(s.Node.Node, false); err != nil || !fresh {
		t.Errorf("a reading of before the last change is believed (%v)", err)
	}
	s.reads()
	// as if the files had changed while the clock was set back: they are older than the reading,
	// and others
	s.cache.stamp = Stamp{}
	if _, fresh, err := s.cache.Read(s.Node.Node, false); err != nil || !fresh {
		t.Errorf("a reading of other files is believed (%v)", err)
	}
	daemontest.End(one)
	if got := s.reads(); got != "21/1" {
		t.Errorf("a container has ended: %s", got)
	}
	if s.cache.allWatched {
		t.Error("the binding of a container that is gone is there, and nobody is to look for it")
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
	if o, err := s.cache.Current(s.Node.Node); err != nil || counts(o) != "1/0" {
		t.Errorf("the container has ended: %s (%v)", counts(o), err)
	}
}

func noExitWatcher() (*host.ExitWatcher, error) { return nil, host.ErrNoExitWatcher }

// TestContainersAreWatchedAgain: processes that could not be held, for example without descriptors,
// are held as soon as possible; each change is logged once.
func TestContainersAreWatchedAgain(t *testing.T) {
	s := newCachedNode(t)
	log, said := logs.NewNullLogger()
	s.cache.exitsProblem.Log, s.cache.newExitWatcher = log, noExitWatcher
	s.Start(s.Grant(0), "one")
	for range 3 {
		if _, _, err := s.cache.Read(s.Node.Node, true); err != nil || s.cache.allWatched {
			t.Fatalf("settled %v (%v)", s.cache.allWatched, err)
		}
	}
	if got := said.AllEntries(); len(got) != 1 || got[0].Level != logrus.WarnLevel ||
		got[0].Data[logrus.ErrorKey] != host.ErrNoExitWatcher {
		t.Errorf("said is %+v", got)
	}
	s.cache.newExitWatcher = nil
	for range 3 {
		if _, _, err := s.cache.Read(s.Node.Node, true); err != nil || !s.cache.allWatched {
			t.Fatalf("settled %v (%v)", s.cache.allWatched, err)
		}
	}
	if got := said.AllEntries(); len(got) != 2 || got[1].Level != logrus.InfoLevel {
		t.Errorf("said is %+v", got)
	}
}
