package containers

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// In a cgroup namespace of its own a reader sees a cgroup file system without the container's
// cgroup. That is no proof.
func TestAnotherCgroupNamespaceCannotTell(t *testing.T) {
	runtime.LockOSThread() // the thread is not given back, so it ends with the test
	const root = "/sys/fs/cgroup"
	absent := cgroup{paths: map[string]string{"devices": root + "/devices/gpuledger-test-absent",
		"": ""}}
	if _, err := os.Stat(root + "/devices"); err == nil {
		if populated, err := absent.populated(host.Default()); populated || err != nil {
			t.Errorf("a cgroup that is gone: %v, %v; want not populated", populated, err)
		}
	} else {
		absent.paths = map[string]string{"": root + "/gpuledger-test-absent"}
	}
	stayed, ended := make(chan int), make(chan struct{})
	go func() { // a thread that stays where it is: this test's own may be the process's first one
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		stayed <- unix.Gettid()
		<-ended
	}()
	defer close(ended)
	first := fmt.Sprintf("/proc/self/task/%d/ns", <-stayed)
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		t.Skip("misses a cgroup namespace of its own: ", err)
	}
	h := host.Default()
	h.Proc = t.TempDir()
	for process, ns := range map[string]string{"self": "/proc/thread-self/ns", "1": first} {
		real, err := filepath.EvalSymlinks(ns)
		if err == nil {
			err = os.MkdirAll(filepath.Join(h.Proc, process), 0o700)
		}
		if err == nil {
			err = os.Symlink(real, filepath.Join(h.Proc, process, "ns"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if populated, err := absent.populated(h); populated || err == nil {
		t.Errorf("from another cgroup namespace: %v, %v; want an error", populated, err)
	}
	h.Proc = filepath.Join(h.Proc, "nothing")
	if _, err := absent.populated(h); err == nil || !strings.Contains(err.Error(), fs.ErrNotExist.Error()) &&
		!os.IsNotExist(err) {
		t.Errorf("without a /proc: %v, want an error", err)
	}
}
