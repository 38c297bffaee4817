package deviceplugin

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// of returns a grant from the ledger.
func (s *site) of(id grant.ID) grant.Grant {
	s.SimulatedNode.T.Helper()
	all := s.Grants()
	i := slices.IndexFunc(all, func(g grant.Grant) bool { return g.ID == id })
	if i < 0 {
		s.SimulatedNode.T.Fatalf("there is no grant %s: %v", id, all)
	}
	return all[i]
}

// isFor checks the ties of a grant.
func (s *site) isFor(when string, id grant.ID, want ...grant.Tie) {
	s.SimulatedNode.T.Helper()
	if got := s.of(id).For; !slices.Equal(got, want) {
		s.SimulatedNode.T.Errorf("%s: it is for %v, want %v", when, got, want)
	}
}

// Before the kubelet starts a container, its checkpoint names the pod that has the reference.
func TestAGrantIsTiedToThePodInTheCheckpoint(t *testing.T) {
	tieTime = time.Hour // it is tied because the file has changed, not because time is over
	t.Cleanup(func() { tieTime = admissionTime })
	s := newSite(t, 1, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	first, reference := s.gets(c, some(0, 3)...)
	other, others := s.gets(c, some(4, 7)...)
	s.isFor("as long as the pod is unknown", first.ID)
	s.kubelet.writes(units1GiB.Name, map[string]grant.Reference{"p1": reference, "p2": others})
	for deadline := time.Now().Add(time.Minute); len(s.of(first.ID).For) == 0 ||
		len(s.of(other.ID).For) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("without Ensure: %+v", s.Grants())
		}
	}
	s.ties.Wait() // what has tied them may look once more, and would meet what follows
	s.isFor("written down", first.ID, "pod:p1")
	s.isFor("written down", other.ID, "pod:p2")

	// The ties of an unused grant follow its reference, which no container has seen. The ties of a
	// used grant stay, whatever the file contains.
	s.kubelet.writes(units1GiB.Name, map[string]grant.Reference{"p3": reference, "p2": others})
	s.ensure()
	s.isFor("handed on", first.ID, "pod:p3")
	end := s.Use(first.ID, grant.Identity{UID: "p3", Namespace: "team", Pod: "three", Container: "main"})
	s.kubelet.writes(units1GiB.Name, map[string]grant.Reference{"p9": reference, "p2": others})
	s.ensure()
	s.isFor("in use", first.ID, "pod:p3")
	end()
	s.ensure()
	s.isFor("it was used", first.ID, "pod:p3")
	check(t, os.Remove(checkpointFile))
	s.ensure()
	s.isFor("the file is gone", other.ID, "pod:p2")
}

func TestARestartedPluginTiesUntiedGrants(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	ask, err := units1GiB.ask(some(0, 3))
	check(t, err)
	g, reference, err := s.Enter(ask) // as a version without ties did
	check(t, err)
	defer s.Use(g.ID, grant.Identity{UID: "p9", Namespace: "other", Pod: "thief", Container: "main"})()
	s.kubelet.writes(units1GiB.Name, map[string]grant.Reference{"p1": reference})
	var log bytes.Buffer
	s.Allocator.Log = slog.New(slog.NewTextHandler(&log, nil))
	s.ensure()
	s.ensure()
	s.isFor("after an update", g.ID, "pod:p1")
	if n := strings.Count(log.String(), "none of its pods' uses a grant"); n != 1 ||
		!strings.Contains(log.String(), "namespace=other pod=thief uid=p9") {
		t.Errorf("the log names the thief %d times:\n%s", n, log.String())
	}
}

func TestUntrustedAnnotationsTieNothing(t *testing.T) {
	s := newSite(t, 1, units1GiB, "")
	text, err := os.ReadFile(s.Config)
	check(t, err)
	check(t, os.WriteFile(s.Config, append([]byte("engine = \"docker\"\n"), text...), 0o600))
	var log bytes.Buffer
	s.Allocator.Log = slog.New(slog.NewTextHandler(&log, nil))
	s.ensure()
	c, _ := s.kubelet.registered()
	g, reference := s.gets(c, some(0, 3)...)
	s.kubelet.writes(units1GiB.Name, map[string]grant.Reference{"p1": reference})
	s.ensure()
	s.ensure()
	s.isFor("under docker", g.ID)
	s.Stop()
	if n := strings.Count(log.String(), "the engine of this node does not prove which pod"); n != 1 ||
		!strings.Contains(log.String(), "engine=docker") {
		t.Errorf("it is logged %d times:\n%s", n, log.String())
	}
}

// The kubelet replaces its checkpoint by a new file.
func TestACheckpointIsReadWhenItHasChanged(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, checkpointFile)
	write := func() {
		t.Helper()
		check(t, os.WriteFile(path+".new", []byte("{}"), 0o600))
		check(t, os.Rename(path+".new", path))
	}
	none := statCheckpoint(dir)
	if !none.same(statCheckpoint(dir)) {
		t.Error("no file is not like no file")
	}
	write()
	first := statCheckpoint(dir)
	if first.same(none) || none.same(first) || !first.same(statCheckpoint(dir)) {
		t.Error("a first file is like none, or not like itself")
	}
	write()
	if first.same(statCheckpoint(dir)) {
		t.Error("another file of the same size is like the first")
	}
}

// A call that goes on while the service ends must not keep later ones from tying.
func TestACallOfAnEndedServiceTiesNothing(t *testing.T) {
	tieTime = time.Hour
	t.Cleanup(func() { tieTime = admissionTime })
	s := newSite(t, 1, units1GiB, "")
	s.ensure()
	c, _ := s.kubelet.registered()
	s.gets(c, some(4, 7)...) // of an unknown pod
	s.Stop()
	s.tieSoon() // of an Allocate that has lasted
	s.ensure()
	c, _ = s.kubelet.registered()
	g, reference := s.gets(c, some(0, 3)...)
	s.kubelet.writes(units1GiB.Name, map[string]grant.Reference{"p1": reference})
	for deadline := time.Now().Add(time.Minute); len(s.of(g.ID).For) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("without Ensure: %+v", s.Grants())
		}
	}
	s.Stop()
}
