package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// unified is where the tests may make cgroups of version 2.
var unified = []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"}

// cgroup2 is a new cgroup of version 2.
func cgroup2(t *testing.T) string {
	t.Helper()
	i := slices.IndexFunc(unified, func(root string) bool {
		_, err := os.Stat(filepath.Join(root, "cgroup.controllers"))
		return err == nil
	})
	if i < 0 || os.Geteuid() != 0 {
		t.Skip("misses root and cgroup v2, so it does not show that threaded cgroups hide no process")
	}
	dir, err := os.MkdirTemp(unified[i], "gpuledger-kill-")
	if err != nil {
		t.Skip("misses a cgroup of its own: ", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestThreadedCgroupsHideNoProcess: a container that may write to its cgroups makes one threaded,
// of which the kernel lists no processes.
func TestThreadedCgroupsHideNoProcess(t *testing.T) {
	dir := cgroup2(t)
	below := filepath.Join(dir, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(below) })
	above, threaded := runner(t), runner(t)
	move(t, above, dir)
	if err := os.WriteFile(filepath.Join(below, "cgroup.type"), []byte("threaded"), 0); err != nil {
		t.Skip("this kernel makes no threaded cgroups: ", err)
	}
	move(t, threaded, below)
	both := []int{above.Process.Pid, threaded.Process.Pid}
	slices.Sort(both)
	for at, want := range map[string][]int{dir: both, below: {threaded.Process.Pid}} {
		if pids, err := processesBelow(host.Default(), at); err != nil || !slices.Equal(pids, want) {
			t.Errorf("below %s are %v (%v), want %v", at, pids, err, want)
		}
	}
	t.Cleanup(func() { end(t, above); end(t, threaded) })
}

// TestProcessOfAThread finds the process, also from its first thread.
func TestProcessOfAThread(t *testing.T) {
	names, err := os.ReadDir("/proc/self/task")
	if err != nil || len(names) < 2 {
		t.Fatalf("%v, %v", names, err)
	}
	for _, name := range names {
		var thread int
		_, _ = fmt.Sscan(name.Name(), &thread)
		if pid, err := processOfThread(host.Default(), thread); err != nil || pid != os.Getpid() {
			t.Errorf("thread %d is of process %d (%v)", thread, pid, err)
		}
	}
	if pid, err := processOfThread(host.Default(), 1<<30); err == nil {
		t.Errorf("a thread that is not there is of process %d", pid)
	}
}

// TestProcessesThatHang: the kernel kills all of their cgroups, and they do not end. Every
// container is killed at once, and all of them are waited for together. One that ends is stopped.
func TestProcessesThatHang(t *testing.T) {
	dir := t.TempDir()
	h := host.Host{Proc: dir + "/proc", Sys: dir + "/sys"}
	put := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	process := func(pid int, cgroup string) grant.Process {
		at := fmt.Sprintf("%s/%d/", h.Proc, pid)
		put(at+"stat", fmt.Sprintf("%d (x) D 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", pid, pid))
		put(at+"comm", "x\n")
		put(at+"cgroup", "0::"+cgroup+"\n")
		put(at+"ns/pid", "")
		return grant.Process{PID: pid, Start: uint64(pid)}
	}
	process(1, "/init.scope")
	process(os.Getpid(), "/system.slice/gpuledgerd.service")
	var users []grant.User
	for i := range 3 {
		pid, cgroup := 1<<23+i, fmt.Sprintf("/c%d", i) // no real process has the pid
		users = append(users, grant.User{Container: cgroup[1:], Cgroup: cgroup,
			Processes: []grant.Process{process(pid, cgroup)}})
		put(h.Sys+"/fs/cgroup"+cgroup+"/cgroup.procs", fmt.Sprintln(pid))
		put(h.Sys+"/fs/cgroup"+cgroup+"/cgroup.kill", "0")
	}
	users = append(users, users[2]) // it has two GPUs
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		go func() {
			time.Sleep(stopTime / 2)
			for i := range 3 {
				text, _ := os.ReadFile(fmt.Sprintf("%s/fs/cgroup/c%d/cgroup.kill", h.Sys, i))
				if string(text) != "1" {
					t.Errorf("container %d is not killed after %s", i, stopTime/2)
				}
			}
			put(h.Sys+"/fs/cgroup/c2/cgroup.procs", "")
		}()
		all := Stop(h, users, func(grant.User) bool { return false })
		if took := time.Since(began); took > stopTime+time.Second {
			t.Errorf("it took %s, want %s for all", took, stopTime)
		}
		for i, s := range all[:2] {
			if s.Err == nil || !strings.Contains(s.Err.Error(), "1 of its processes do not end") {
				t.Errorf("container %d: %+v", i, s)
			}
		}
		if all[2] != (Stopped{Processes: 1}) || all[3] != (Stopped{}) {
			t.Errorf("one that ends: %+v, and when it is listed again: %+v", all[2], all[3])
		}
		began = time.Now()
		put(h.Sys+"/fs/cgroup/c0/cgroup.kill", "0")
		all = Stop(h, users[:2], func(grant.User) bool { return true })
		if took := time.Since(began); took > time.Second || all[0].Err == nil || all[1].Err == nil {
			t.Errorf("of those that hang: %+v, after %s", all, took)
		}
		if text, _ := os.ReadFile(h.Sys + "/fs/cgroup/c0/cgroup.kill"); string(text) != "1" {
			t.Error("one that hangs is not killed again")
		}
	})
}
