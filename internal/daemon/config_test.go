package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// TestSettingsAreReadWhenTheyChange: however small the change and however soon it comes, and at an
// administrator's request; and not otherwise.
func TestSettingsAreReadWhenTheyChange(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.toml")
	write := func(interval, more string) {
		t.Helper()
		daemontest.Must(t, os.WriteFile(path, []byte("state_dir = \""+dir+"/state\"\nrun_dir = \""+
			dir+"/run\"\n[daemon]\ninterval = \""+interval+"\"\n"+more), 0o600))
	}
	write("1s", "")
	reads := 0
	log := logrus.New()
	log.SetOutput(t.Output())
	s, err := newConfigManager(func() *node.Node {
		reads++
		return node.Open(path, host.Default())
	}, path, log)
	daemontest.Must(t, err)
	defer s.Close()
	// within one tick of the clock, and of the same length
	for _, interval := range []string{"2s", "3s", "4s", "5s"} {
		write(interval, "")
		daemontest.Must(t, s.Ensure(context.Background()))
		if got := s.Interval().String(); got != interval {
			t.Errorf("the interval is %s, and %s is configured", got, interval)
		}
	}
	for end := time.Now().Add(time.Minute); ; { // until it is older than a tick
		before := reads
		if daemontest.Must(t, s.Ensure(context.Background())); reads == before {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it is read at each pass, and does not change")
		}
	}
	before := reads
	if s.Reload(); reads == before {
		t.Error("a reload was requested, and the file is not read")
	}
	before, s.read = reads, s.stamp.Changed() // as if it had been read in the tick of its change
	if daemontest.Must(t, s.Ensure(context.Background())); reads == before {
		t.Error("what was read in the tick of its change is believed")
	}
	cluster := policy.ClusterPath(path)
	daemontest.Must(t, os.WriteFile(cluster, []byte("[daemon]\ninterval = \"7s\"\n"), 0o600))
	if daemontest.Must(t, s.Ensure(context.Background())); s.Interval() != 7*time.Second {
		t.Errorf("the interval is %s, and the cluster's file says 7s", s.Interval())
	}
	daemontest.Must(t, os.Remove(cluster), s.Ensure(context.Background()))
	write("6s", "nonsense = 1\n")
	for range 3 {
		if s.Ensure(context.Background()) == nil || s.Interval() != 5*time.Second || !s.read.IsZero() {
			t.Errorf("a broken file is in force, or is not reported, or will not be read again: "+
				"the interval is %s", s.Interval())
		}
	}
	daemontest.Must(t, os.Remove(path))
	if s.Ensure(context.Background()) == nil {
		t.Error("the file was removed, and that is not reported")
	}
}

// TestABrokenFileAtTheStart: the daemon starts, and its managers wait for a good file. Without it,
// containers behind NRI alone would start unchecked.
func TestABrokenFileAtTheStart(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.toml")
	good := "state_dir = \"" + dir + "/state\"\nrun_dir = \"" + dir + "/run\"\n"
	daemontest.Must(t, os.WriteFile(path, []byte(good+"keeep = 1\n"), 0o600))
	log := logrus.New()
	log.SetOutput(t.Output())
	s, err := newConfigManager(func() *node.Node { return node.Open(path, host.Default()) }, path, log)
	daemontest.Must(t, err)
	defer s.Close()
	work := &countingManager{}
	m := configuredManager{work, s.Node}
	if err := s.Ensure(t.Context()); err == nil || s.Node().Broken == nil {
		t.Errorf("the broken file is not reported: %v", err)
	}
	if daemontest.Must(t, m.Ensure(t.Context())); work.passes != 0 {
		t.Error("a manager works with a broken configuration")
	}
	daemontest.Must(t, os.WriteFile(path, []byte(good), 0o600), s.Ensure(t.Context()), m.Ensure(t.Context()))
	if s.Node().Broken != nil || work.passes != 1 {
		t.Errorf("with the file corrected the node has %v, and the manager %d passes", s.Node().Broken,
			work.passes)
	}
}

// TestACorrectionToTheDefaults: a broken file may leave the same policy as the corrected one.
func TestACorrectionToTheDefaults(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.toml")
	good := "state_dir = \"" + dir + "/state\"\nrun_dir = \"" + dir + "/run\"\n"
	broken := errors.New("line 3")
	open := func() *node.Node {
		n := node.Open(path, host.Default())
		n.Broken = broken
		return n
	}
	daemontest.Must(t, os.WriteFile(path, []byte(good), 0o600))
	log := logrus.New()
	log.SetOutput(t.Output())
	s, err := newConfigManager(open, path, log)
	daemontest.Must(t, err)
	defer s.Close()
	broken = nil
	if daemontest.Must(t, s.Ensure(t.Context())); s.Node().Broken != nil {
		t.Error("the file is corrected, and the node is still broken")
	}
}

type countingManager struct {
	Manager
	passes int
}

func (m *countingManager) Ensure(context.Context) error {
	m.passes++
	return nil
}
