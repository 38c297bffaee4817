package mps

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// starts counts the launchers that are started.
type starts struct {
	machine
	count int
}

func (s *starts) StartLauncher(string) error { s.count++; return nil }

// TestLateLauncher: gpuledgerd is killed while its launcher is under way. The next gpuledgerd
// neither removes the directory nor starts a second daemon there, before and after the launcher is
// the daemon.
func TestLateLauncher(t *testing.T) {
	s, system := newStage(t), &starts{}
	d := s.again(grant.MPSName([]string{"GPU-0"}))
	d.system = system
	must(t, os.MkdirAll(d.dir, 0o700))
	unlock, err := lock(d.dir) // as the launcher does
	must(t, err)
	check := func(want string) {
		t.Helper()
		var removes, launches error
		var both sync.WaitGroup
		host.Go(&both, func() { removes = d.remove() })
		host.Go(&both, func() { launches = d.launch(wanted("GPU-0")) })
		both.Wait()
		for what, err := range map[string]error{"remove": removes, "launch": launches} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", what, err, want)
			}
		}
		if _, err := os.Stat(d.dir); err != nil || system.count != 0 {
			t.Errorf("the directory: %v; %d launchers are started", err, system.count)
		}
	}
	check("still under way")

	boot, err := s.node.Host.BootID()
	must(t, err)
	data, err := json.Marshal(launchedProcess{s.self(), boot})
	must(t, err, os.WriteFile(filepath.Join(d.dir, processFile), data, 0o600))
	unlock()
	check("has become the daemon")
	if err := RunLauncher(d.dir, s.node.Host); err == nil ||
		!strings.Contains(err.Error(), "has become the daemon") {
		t.Errorf("a second launcher: %v", err)
	}

	must(t, os.Remove(filepath.Join(d.dir, processFile)), d.remove())
	if _, err := os.Stat(d.dir); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
}

// TestLauncherWithoutDirectory: a launcher ends if its directory was removed, or removed and made
// again, before it had the lock.
func TestLauncherWithoutDirectory(t *testing.T) {
	s := newStage(t)
	for again, want := range map[bool]string{false: "no such file", true: "was removed and made again"} {
		dir := filepath.Join(t.TempDir(), "daemon")
		must(t, os.Mkdir(dir, 0o700))
		unlock, err := lock(dir)
		must(t, err)
		ended := make(chan error)
		go func() { ended <- RunLauncher(dir, s.node.Host) }()
		awaitDescriptor(t, dir)
		must(t, os.Remove(dir))
		if again {
			must(t, os.Mkdir(dir, 0o700))
		}
		unlock()
		if err := <-ended; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("made again %v: %v, want %q", again, err, want)
		}
	}
}

// TestStrayEntries: what is no directory among those of the daemons is removed.
func TestStrayEntries(t *testing.T) {
	s := newStage(t)
	for name, make := range map[string]func(path string) error{
		"file": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"link": func(path string) error { return os.Symlink("/", path) },
	} {
		d := s.again(name)
		must(t, os.MkdirAll(filepath.Dir(d.dir), 0o700), make(d.dir), d.remove())
		if _, err := os.Lstat(d.dir); !os.IsNotExist(err) {
			t.Errorf("the %s is left: %v", name, err)
		}
	}
}

// awaitDescriptor waits until this process has a directory open twice.
func awaitDescriptor(t *testing.T, dir string) {
	t.Helper()
	for {
		count := 0
		links, err := filepath.Glob("/proc/self/fd/*")
		must(t, err)
		for _, link := range links {
			if to, err := os.Readlink(link); err == nil && to == dir {
				count++
			}
		}
		if count == 2 {
			return
		}
	}
}
