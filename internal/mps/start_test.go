package mps

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
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
	inTurn := func(do ...func()) {
		for _, f := range do {
			f()
		}
	}
	check := func(want string, call func(...func())) {
		t.Helper()
		var removes, launches error
		call(func() { removes = d.remove() }, func() { launches = d.launch(wanted("GPU-0")) })
		for what, err := range map[string]error{"remove": removes, "launch": launches} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", what, err, want)
			}
		}
		if _, err := os.Stat(d.dir); err != nil || system.count != 0 {
			t.Errorf("the directory: %v; %d launchers are started", err, system.count)
		}
	}
	check("still under way", func(do ...func()) { // each waits for the lock as long as it may
		var all sync.WaitGroup
		for _, f := range do {
			host.Go(&all, f)
		}
		all.Wait()
	})

	must(t, s.becomes(d.dir, s.self()))
	unlock()
	check("has become the daemon", inTurn) // or one may wait for the lock in vain, which the other has
	if err := RunLauncher(d.dir, s.node.Host); err == nil ||
		!strings.Contains(err.Error(), "has become the daemon") {
		t.Errorf("a second launcher: %v", err)
	}

	must(t, os.Remove(filepath.Join(d.dir, processFile)), d.remove())
	if _, err := os.Stat(d.dir); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
}

// launchers is a machine with a clock and launchers of a test's own.
type launchers struct {
	stopped
	launch func(dir string) error
}

func (l *launchers) StartLauncher(dir string) error { return l.launch(dir) }

// becomes records a process for the daemon of a directory, as its launcher does.
func (s stage) becomes(dir string, p grant.Process) error {
	boot, err := s.node.Host.BootID()
	must(s.t, err)
	data, err := json.Marshal(launchedProcess{p, boot})
	must(s.t, err)
	return os.WriteFile(filepath.Join(dir, processFile), data, 0o600)
}

// gone is a process that has ended.
func (s stage) gone() grant.Process {
	p := exec.Command("true")
	must(s.t, p.Run())
	return grant.Process{PID: p.Process.Pid, Start: 1}
}

// starting is a manager whose launchers do what launch says, and one of its passes over a node that
// has a grant of each of these sets of GPUs.
func (s stage) starting(launch func(dir string) error) (clock *stopped, pass func(sets ...[]string) error) {
	system := &launchers{stopped{now: time.Now()}, launch}
	m := &Manager{Node: func() *node.Node { return s.node }, Log: s.again("").log, System: system}
	return &system.stopped, func(sets ...[]string) error {
		var all []grant.Grant
		for _, gpus := range sets {
			all = append(all, held(grant.MPS, 0, grant.GiB, nil, gpus...))
		}
		return m.ensure(s.t.Context(), grants.Overview{View: grant.View{Grants: all}})
	}
}

// TestALauncherThatHangsDelaysNoOther: each of three launchers ends once all have begun.
func TestALauncherThatHangsDelaysNoOther(t *testing.T) {
	s := newStage(t)
	var begun sync.WaitGroup
	begun.Add(3)
	_, pass := s.starting(func(dir string) error {
		begun.Done()
		all := make(chan struct{})
		go func() { begun.Wait(); close(all) }()
		select {
		case <-all:
			return s.becomes(dir, s.self())
		case <-time.After(time.Minute):
			return errors.New("it waits for the others")
		}
	})
	must(t, pass([]string{"GPU-0"}, []string{"GPU-1"}, []string{"GPU-2", "GPU-3"}))
}

// TestStartsWithAGPUInCommon are made one after another, and the second one not at all if the first
// daemon runs or may come.
func TestStartsWithAGPUInCommon(t *testing.T) {
	for name, c := range map[string]struct {
		launched func(s stage, dir string) error // the first one
		starts   int
		problem  string
	}{
		"the first runs": {func(s stage, dir string) error { return s.becomes(dir, s.self()) }, 1,
			"is not gone yet"},
		"the first ended at once": {func(s stage, dir string) error { return s.becomes(dir, s.gone()) }, 2,
			noReason},
		"the first may come": {func(stage, string) error { return errors.New("no answer") }, 1,
			"is not gone yet"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			var mu sync.Mutex
			var running, most int
			var dirs []string
			count := func(change int) (starts int) {
				mu.Lock()
				defer mu.Unlock()
				running += change
				most = max(most, running)
				return len(dirs)
			}
			clock, pass := s.starting(func(dir string) error {
				mu.Lock()
				dirs = append(dirs, dir)
				mu.Unlock()
				defer count(-1)
				if count(1) > 1 {
					return s.becomes(dir, s.self())
				}
				time.Sleep(50 * time.Millisecond) // others would begin meanwhile
				return c.launched(s, dir)
			})
			sets := [][]string{{"GPU-0"}, {"GPU-0", "GPU-1"}}
			err := pass(sets...)
			if most != 1 || len(dirs) != c.starts || err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%d started, %d at a time: %v", len(dirs), most, err)
			}
			if name != "the first may come" {
				return
			}
			clock.now = clock.now.Add(time.Hour)
			other := slices.DeleteFunc(sets, func(gpus []string) bool {
				return grant.MPSName(gpus) == filepath.Base(dirs[0])
			})
			if must(t, pass(other...)); len(dirs) != 2 || dirs[1] == dirs[0] {
				t.Errorf("without a grant for the first one, %v were started", dirs)
			}
		})
	}
}

// TestASlowStartIsPutOff: while a launcher is awaited, the manager does nothing else. So it is not
// started again in the next pass.
func TestASlowStartIsPutOff(t *testing.T) {
	s, count := newStage(t), 0
	var clock *stopped
	clock, pass := s.starting(func(string) error {
		count++
		clock.now = clock.now.Add(answerTime)
		return errors.New("no answer")
	})
	for _, c := range []struct {
		after time.Duration
		count int
	}{{0, 1}, {time.Second, 1}, {restAfterSilence*answerTime - 2*time.Second, 1}, {time.Second, 2}} {
		clock.now = clock.now.Add(c.after)
		if err := pass([]string{"GPU-0"}); err == nil || !strings.Contains(err.Error(), "no answer") ||
			count != c.count {
			t.Errorf("%s later it was started %d times, want %d: %v", c.after, count, c.count, err)
		}
	}
}

// TestAUnitThatIsNotStarted: the error says what systemd says of a unit. It does not wait for one
// that is still stopping.
func TestAUnitThatIsNotStarted(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for script, want := range map[string]string{
		"exec sleep 30": "systemd has not started a.service within 5s",
		"echo Unit a.service is masked. >&2; exit 1": "cannot start a.service: exit status 1: " +
			"Unit a.service is masked.",
	} {
		must(t, os.WriteFile(filepath.Join(dir, "systemctl"), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
		starts := func(t *testing.T) {
			if err := startUnit("a.service"); err == nil || err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
		}
		if strings.HasPrefix(script, "exec sleep") {
			starts(t)
			continue
		}
		synctest.Test(t, starts) // its clock stands still while a program runs
	}
}

// TestLauncherWithoutDirectory: a launcher ends if its directory was removed, or removed and made
// again, before it had the lock.
func TestLauncherWithoutDirectory(t *testing.T) {
	s := newStage(t)
	for again, want := range map[bool]string{false: "no such file", true: "was removed and made again"} {
		synctest.Test(t, func(t *testing.T) { // its clock stands still until the lock is free
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
		})
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
