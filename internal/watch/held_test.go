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
		c.newExitWatcher = failingExitWatcher
	}
	t.Cleanup(c.Close)
	c.Lookup(nil)
	if holds != (c.exits != nil) || holds != (c.ExitWatchError() == nil) {
		t.Fatal("this kernel holds no processes: ", c.ExitWatchError())
	}
	return c
}

func failingExitWatcher() (*host.ExitWatcher, error) { return nil, host.ErrNoExitWatcher }

// endOf returns what waits for the end of a process, as an exit watcher that holds it from now on
// reports it. A process that is on its way there is in the root of v1's hierarchies.
func endOf(t *testing.T, pid int) (wait func()) {
	t.Helper()
	v, err := host.NewExitWatcher()
	if err == nil {
		t.Cleanup(v.Close)
		err = v.Add(pid)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			switch ended, err := v.Ended(); {
			case err != nil || time.Now().After(until):
				t.Fatalf("process %d has not ended (%v)", pid, err)
			case len(ended) > 0:
				return
			}
		}
	}
}

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
	hasEnded := endOf(t, lingers.Process.Pid)
	pids := []int{stays.Process.Pid, goes.Process.Pid, lingers.Process.Pid, goes.Process.Pid}
	users := c.Lookup(pids)
	if len(users) != 3 || len(c.exits.PIDs()) != 3 {
		t.Fatalf("%d of 3 are found and %d held", len(users), len(c.exits.PIDs()))
	}
	was, changes := users[lingers.Process.Pid], c.Changes()
	if c.Lookup(pids); c.Changes() != changes {
		t.Error("no process has started, ended or moved, and it has changed")
	}
	end(t, goes)
	_ = lingers.Process.Kill()
	hasEnded()
	users = c.Lookup(pids)
	if _, found := users[goes.Process.Pid]; found || len(users) != 2 {
		t.Errorf("an ended process is there: %+v", users)
	}
	if c.Changes() == changes {
		t.Error("one has ended, and nothing has changed")
	}
	for range 2 * refreshPasses {
		if users = c.Lookup(pids); users[lingers.Process.Pid] != was {
			t.Fatalf("a zombie is %+v and was %+v", users[lingers.Process.Pid], was)
		}
	}
	end(t, lingers)
	if users = c.Lookup(pids); len(users) != 1 || users[stays.Process.Pid].PID == 0 {
		t.Errorf("left are %+v", users)
	}
	if users = c.Lookup(nil); len(users) != 0 || len(c.exits.PIDs()) != 0 {
		t.Errorf("without pids: %+v, %d held", users, len(c.exits.PIDs()))
	}
}

// TestAReusedPid: the very next pass sees another process.
func TestAReusedPid(t *testing.T) {
	const last = "/proc/sys/kernel/ns_last_pid"
	if os.Geteuid() != 0 {
		t.Skip("misses root, to choose the pid of a process")
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
			t.Skip("another program has the pid")
		}
	}
	// it may have started in the same tick
	if now := c.Lookup([]int{pid})[pid]; now.Command != "tail" || was.Command != "sleep" {
		t.Errorf("it is %+v, and was %+v", now, was)
	}
}

// cgroup is the directory of the test's own cgroup.
func cgroup(t *testing.T) string {
	t.Helper()
	root, _ := host.CgroupRoot(host.Default())
	dir, err := os.MkdirTemp(root, "gpuledger-processes-")
	if err != nil {
		t.Skip("misses a cgroup of its own, so it does not show that a moving process is seen: ", err)
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

// TestAMoveIsSeen within twenty passes, of a process that is held and of one that is not.
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

// TestProcessesThatCannotBeHeld: the start time of a process that cannot be held is compared.
func TestProcessesThatCannotBeHeld(t *testing.T) {
	c := real(t, false)
	cmd := runner(t)
	pid := cmd.Process.Pid
	if users := c.Lookup([]int{pid}); len(users) != 1 {
		t.Fatalf("%+v", users)
	}
	end(t, cmd)
	for range refreshPasses {
		c.Lookup([]int{pid})
	}
	if users := c.Lookup([]int{pid}); len(users) != 0 {
		t.Errorf("after %d passes: %+v", refreshPasses, users)
	}
}

// TestHeldAgain: a process that could not be held, for example for lack of descriptors, is held
// within twice twenty passes after it becomes possible. No process is read again for that.
func TestHeldAgain(t *testing.T) {
	c := real(t, false)
	stays, goes := runner(t), runner(t)
	pids := []int{stays.Process.Pid, goes.Process.Pid}
	for range 2 * refreshPasses {
		if users := c.Lookup(pids); len(users) != 2 {
			t.Fatalf("%+v", users)
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
	if users := c.Lookup(pids); len(users) != 1 {
		t.Errorf("one has ended: %+v", users)
	}
	c.exits.Close() // as if the kernel reported no more ends
	for c.pass%refreshPasses != refreshPasses/2 {
		c.Lookup(pids)
	}
	if c.ExitWatchError() == nil || c.exits != nil {
		t.Error("no process is held any more, and that is not reported")
	}
	for range 2 * refreshPasses {
		c.Lookup(pids)
	}
	if c.ExitWatchError() != nil || !c.exits.Has(stays.Process.Pid) {
		t.Errorf("it is no longer held: %v", c.ExitWatchError())
	}
}

// TestHeldAgainByItsCgroup: the cgroup of a process that is held again is read from its list, as at
// the beginning.
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
		t.Errorf("the cgroup's list is used for a process that is not held: %+v", r)
	}
	c.newExitWatcher = nil
	for range 2 * refreshPasses {
		c.Lookup([]int{pid})
	}
	if r := c.known[pid]; r.phase < 0 || r.phase != phaseOf(c.processes[pid].Cgroup) {
		t.Errorf("the cgroup's list is not used: %+v", r)
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
	before.Start-- // as if the earlier process had ended, and its pid had been reused
	c.processes[pid] = before
	c.newExitWatcher = nil
	for range 2 * refreshPasses {
		c.Lookup([]int{pid})
	}
	if is := c.Lookup([]int{pid})[pid]; is != was || !c.exits.Has(pid) {
		t.Errorf("it is %+v and not %+v; held: %v", is, was, c.exits.PIDs())
	}
}
