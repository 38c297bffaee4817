package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

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
