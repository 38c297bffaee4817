package host

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func exitWatcher(t *testing.T) *ExitWatcher {
	t.Helper()
	v, err := NewExitWatcher()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// ended waits until the exit watcher has returned this many pids.
func ended(t *testing.T, v *ExitWatcher, want int) (all []int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); len(all) < want &&
		time.Now().Before(end); time.Sleep(time.Millisecond) {
		pids, err := v.Ended()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pids...)
	}
	slices.Sort(all)
	return all
}

// TestExitWatcher: the pid of a process that ends is returned once, before another process can have
// it. No other pid is returned.
func TestExitWatcher(t *testing.T) {
	v := exitWatcher(t)
	var all []*exec.Cmd
	var want []int
	for i := range 300 { // more than one call of epoll_wait returns
		cmd := sleeper(t)
		all = append(all, cmd)
		if err := errors.Join(v.Add(cmd.Process.Pid), v.Add(cmd.Process.Pid)); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			want = append(want, cmd.Process.Pid)
		}
	}
	if pids, err := v.Ended(); len(pids) != 0 || err != nil || len(v.PIDs()) != 300 {
		t.Fatalf("of 300 that run %v have ended, %d are held (%v)", pids, len(v.PIDs()), err)
	}
	for i := 0; i < 300; i += 2 {
		_ = all[i].Process.Kill() // not waited for: a zombie has ended
	}
	slices.Sort(want)
	if got := ended(t, v, len(want)); !slices.Equal(got, want) {
		t.Errorf("ended are %v, want %v", got, want)
	}
	if pids, err := v.Ended(); len(pids) != 0 || err != nil || len(v.PIDs()) != 150 || v.Has(want[0]) ||
		!v.Has(all[1].Process.Pid) {
		t.Errorf("returned again: %v, %d held (%v)", pids, len(v.PIDs()), err)
	}
	v.Remove(all[1].Process.Pid)
	_ = all[1].Process.Kill()
	_ = all[1].Wait()
	if pids, err := v.Ended(); len(pids) != 0 || err != nil {
		t.Errorf("a released pid is returned: %v (%v)", pids, err)
	}
	if err := v.Add(all[1].Process.Pid); err != unix.ESRCH {
		t.Errorf("no process has the pid: %v", err)
	}
}

// TestExitWatcherLeavesRoom: an exit watcher holds no more descriptors than its part, releases
// them, and returns an error when it has no more.
func TestExitWatcherLeavesRoom(t *testing.T) {
	v := exitWatcher(t)
	v.limit = 1
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	first, second := sleeper(t), sleeper(t)
	before := open()
	if err := v.Add(first.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := v.Add(second.Process.Pid); !errors.Is(err, ErrNoExitWatcher) || v.Has(second.Process.Pid) {
		t.Errorf("beyond its room: %v", err)
	}
	_ = first.Process.Kill()
	if got := ended(t, v, 1); len(got) != 1 || open() != before {
		t.Errorf("ended %v; %d descriptors before and %d after", got, before, open())
	}
	if err := v.Add(second.Process.Pid); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// TestInheritedPidfdsAreNotReportedAgain: a forked child shares all descriptors until its exec. A
// pidfd that is closed meanwhile stays open in the child, and epoll would report it again, and
// without end if more are ready than fit into one answer.
func TestInheritedPidfdsAreNotReportedAgain(t *testing.T) {
	v := exitWatcher(t)
	var want []int
	for range len(v.events) + 2 {
		cmd := sleeper(t)
		if err := v.Add(cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		inherited, err := unix.Dup(v.pidfds[cmd.Process.Pid])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(inherited) })
		_ = cmd.Process.Kill()
		want = append(want, cmd.Process.Pid)
	}
	slices.Sort(want)
	if got := ended(t, v, len(want)); !slices.Equal(got, want) {
		t.Errorf("returned are %d processes %v, want %v", len(got), got, want)
	}
	if pids, err := v.Ended(); len(pids) != 0 || err != nil {
		t.Errorf("returned again: %v (%v)", pids, err)
	}
}
