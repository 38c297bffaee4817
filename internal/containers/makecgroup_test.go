package containers

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/host"
)

// TestJoin: a process is moved, and one that has got its pid meanwhile goes to where its parent is.
func TestJoin(t *testing.T) {
	h := host.Default()
	here, err := guarded(h, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	dir, path, err := MakeCgroup(h, os.Getpid(), "gpuledger-test-join")
	if err != nil {
		t.Skip("misses cgroups that can be made: ", err)
	}
	defer func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	}()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	pid := cmd.Process.Pid
	if err := Join(h, dir, pid, func() bool { return true }); err != nil {
		t.Fatal(err)
	}
	if at, err := guarded(h, pid); at != path || err != nil {
		t.Errorf("it is in %s (%v), want %s", at, err, path)
	}
	if err := Join(h, dir, pid, func() bool { return false }); err == nil ||
		!strings.Contains(err.Error(), "has ended") {
		t.Errorf("another process: %v", err)
	}
	if at, err := guarded(h, pid); at != here || err != nil {
		t.Errorf("another process is in %s (%v), want %s", at, err, here)
	}
}

// TestCgroupDir: a path leads to a directory with processes, also that of the root.
func TestCgroupDir(t *testing.T) {
	h := host.Default()
	if _, err := os.Stat(CgroupDir(h, "/") + "/cgroup.procs"); err != nil {
		t.Skip("misses a cgroup file system: ", err)
	}
	own, err := guarded(h, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(CgroupDir(h, own) + "/cgroup.procs"); err != nil {
		t.Error(err)
	}
}
