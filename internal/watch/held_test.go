package watch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/host"
)

// runner is a real process, which ends with the test.
func runner(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// real is a process table of this machine, with or without an exit watcher.
func real(t *testing.T, holds bool) *ProcessTable {
	t.Helper()
	c := &ProcessTable{Host: host.Default()}
	if !holds {
		c.newExitWatcher = nobodyIsHeld
	}
	t.Cleanup(c.Close)
	c.Lookup(nil)
	if holds != (c.exits != nil) || holds != (c.ExitWatchError() == nil) {
		t.Fatal("this kernel holds no processes: ", c.ExitWatchError())
	}
	return c
}

func nobodyIsHeld() (*host.ExitWatcher, error) { return nil, host.ErrNoExitWatcher }

func end(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// TestHeldProcessesEnd: the end of a process is seen in the next pass, and not only in the
// twentieth; others stay. A zombie keeps its user and its cgroup: the driver may still report it.
func TestHeldProcessesEnd(t *testing.T) {
	c := real(t, true)
	stays, goes, lingers := runner(t), runner(t), runner(t)
	pids := []int{stays.Process.Pid, goes.Process.Pid, lingers.Process.Pid, goes.Process.Pid}
	people := c.Lookup(pids)
	if len(people) != 3 || len(c.exits.PIDs()) != 3 {
		t.Fatalf("%d of 3 are found and %d held", len(people), len(c.exits.PIDs()))
	}
	was, changes := people[lingers.Process.Pid], c.Changes()
	if c.Lookup(pids); c.Changes() != changes {
		t.Error("nobody has come, gone or moved, and it has changed")
	}
	end(t, goes)
	_ = lingers.Process.Kill()
	ended := func() bool {
		s, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", lingers.Process.Pid))
		return len(s) == 0
	}
	for until := time.Now().Add(time.Minute); !ended() &&
		time.Now().Before(until); time.Sleep(time.Millisecond) {
	}
	people = c.Lookup(pids)
	if _, found := people[goes.Process.Pid]; found || len(people) != 2 {
		t.Errorf("one who has ended is there: %+v", people)
	}
	if c.Changes() == changes {
		t.Error("one has ended, and nothing has changed")
	}
	for range 2 * refreshPasses {
		if people = c.Lookup(pids); people[lingers.Process.Pid] != was {
			t.Fatalf("a zombie is %+v and was %+v", people[lingers.Process.Pid], was)
		}
	}
	end(t, lingers)
	if people = c.Lookup(pids); len(people) != 1 || people[stays.Process.Pid].PID == 0 {
		t.Errorf("left are %+v", people)
	}
	if people = c.Lookup(nil); len(people) != 0 || len(c.exits.PIDs()) != 0 {
		t.Errorf("nobody is asked for: %+v, %d held", people, len(c.exits.PIDs()))
	}
}

// TestAPidThatIsTakenAgain: it is another process in the very next pass.
func TestAPidThatIsTakenAgain(t *testing.T) {
	const last = "/proc/sys/kernel/ns_last_pid"
	if os.Geteuid() != 0 {
		t.Skip("not root: who gets which pid cannot be said")
	}
	c := real(t, true)
	first := runner(t)
	pid := first.Process.Pid
	was := c.Lookup([]int{pid})[pid]
	end(t, first)
	var second *exec.Cmd
	for until := time.Now().Add(time.Minute); second == nil; { // others start processes, too
		if err := os.WriteFile(last, fmt.Append(nil, pid-1), 0); err != nil {
			t.Skip("this kernel does not have it chosen: ", err)
		}
		cmd := exec.Command("tail", "-f", "/dev/null")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { end(t, cmd) })
		if cmd.Process.Pid == pid {
			second = cmd
		} else if end(t, cmd); time.Now().After(until) {
			t.Skip("somebody else has the pid")
		}
	}
	// perhaps started in the same tick
	if now := c.Lookup([]int{pid})[pid]; now.Command != "tail" || was.Command != "sleep" {
		t.Errorf("it is %+v, and was %+v", now, was)
	}
}

// cgroup is the directory of one that is the test's own.
func cgroup(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(cgroupRoot(host.Default()), "gpuledger-processes-")
	if err != nil {
		t.Skip("misses a cgroup of its own, that a process who moves is seen is not shown: ", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func move(t *testing.T, cmd *exec.Cmd, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"),
		fmt.Append(nil, cmd.Process.Pid), 0); err != nil {
		t.Fatal(err)
	}
}

// TestAMoveIsSeen: of a process that is held and of one that is not, within twenty passes.
func TestAMoveIsSeen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to move a process to another cgroup: that the move is seen is not shown")
	}
	for name, holds := range map[string]bool{"held": true, "not held": false} {
		t.Run(name, func(t *testing.T) {
			c := real(t, holds)
			dir := cgroup(t)
			cmd := exec.Command("sleep", "1000")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer end(t, cmd)
			pid := cmd.Process.Pid
			if at := c.Lookup([]int{pid})[pid].Cgroup; filepath.Base(at) == filepath.Base(dir) {
				t.Fatalf("it begins in %s", at)
			}
			move(t, cmd, dir)
			at, changes := "", c.Changes()
			for range refreshPasses {
				at = c.Lookup([]int{pid})[pid].Cgroup
			}
			if filepath.Base(at) != filepath.Base(dir) {
				t.Errorf("after %d passes it is in %q, not in %s", refreshPasses, at, dir)
			}
			if c.Changes() == changes {
				t.Error("it has moved, and nothing has changed")
			}
		})
	}
}

// TestNoRoomToHold: the start time of a process that cannot be held is compared.
func TestNoRoomToHold(t *testing.T) {
	c := real(t, false)
	cmd := runner(t)
	pid := cmd.Process.Pid
	if people := c.Lookup([]int{pid}); len(people) != 1 {
		t.Fatalf("%+v", people)
	}
	end(t, cmd)
	for range refreshPasses {
		c.Lookup([]int{pid})
	}
	if people := c.Lookup([]int{pid}); len(people) != 0 {
		t.Errorf("after %d passes: %+v", refreshPasses, people)
	}
}

// TestHeldAgain: a process that could not be held, for example without descriptors, is held within
// twice twenty passes from when it can be. No process is read again for that.
func TestHeldAgain(t *testing.T) {
	c := real(t, false)
	stays, goes := runner(t), runner(t)
	pids := []int{stays.Process.Pid, goes.Process.Pid}
	for range 2 * refreshPasses {
		if people := c.Lookup(pids); len(people) != 2 {
			t.Fatalf("%+v", people)
		}
	}
	changes := c.Changes()
	c.newExitWatcher = nil
	for range 2 * refreshPasses {
		c.Lookup(pids)
	}
	if c.ExitWatchError() != nil || len(c.exits.PIDs()) != 2 || c.Changes() != changes {
		t.Fatalf("held are %v (%v), and there were %d changes", c.exits.PIDs(), c.ExitWatchError(),
			c.Changes()-changes)
	}
	end(t, goes)
	if people := c.Lookup(pids); len(people) != 1 {
		t.Errorf("one has ended: %+v", people)
	}
	c.exits.Close() // as if the kernel did not tell any more
	for c.pass%refreshPasses != refreshPasses/2 {
		c.Lookup(pids)
	}
	if c.ExitWatchError() == nil || c.exits != nil {
		t.Error("nobody is held any more, and it is not said")
	}
	for range 2 * refreshPasses {
		c.Lookup(pids)
	}
	if c.ExitWatchError() != nil || !c.exits.Has(stays.Process.Pid) {
		t.Errorf("he is held no more: %v", c.ExitWatchError())
	}
}

// TestHeldAgainByItsCgroup: the cgroup of a process that is held again is read from its list, as
// from the beginning.
func TestHeldAgainByItsCgroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to move a process to another cgroup: that the move is seen is not shown")
	}
	dir := cgroup(t)
	c, cmd := real(t, false), runner(t)
	pid := cmd.Process.Pid
	move(t, cmd, dir)
	for range 2 * refreshPasses {
		c.Lookup([]int{pid})
	}
	if r := c.known[pid]; r.phase >= 0 {
		t.Errorf("the cgroup tells of who is not held: %+v", r)
	}
	c.newExitWatcher = nil
	for range 2 * refreshPasses {
		c.Lookup([]int{pid})
	}
	if r := c.known[pid]; r.phase < 0 || r.phase != phaseOf(c.processes[pid].Cgroup) {
		t.Errorf("the cgroup is not asked: %+v", r)
	}
	end(t, cmd)
}

// TestAnotherProcessIsHeldAgain: a new process with the pid is not taken for the old one.
func TestAnotherProcessIsHeldAgain(t *testing.T) {
	c := real(t, false)
	cmd := runner(t)
	pid := cmd.Process.Pid
	was := c.Lookup([]int{pid})[pid]
	before := was
	before.Start-- // as if he who was looked up had ended since, and his pid been given to this one
	c.processes[pid] = before
	c.newExitWatcher = nil
	for range 2 * refreshPasses {
		c.Lookup([]int{pid})
	}
	if is := c.Lookup([]int{pid})[pid]; is != was || !c.exits.Has(pid) {
		t.Errorf("he is %+v and not %+v; held: %v", is, was, c.exits.PIDs())
	}
}
