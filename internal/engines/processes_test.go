package engines

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestMonitors: a monitor counts if it is Podman's and on the node. A process of a container, in a
// pid namespace of its own, keeps nobody from an undo by taking a monitor's name.
func TestMonitors(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("misses root, to make a pid namespace")
	}
	const ours = "/gpuledger-runtime.of-this-test"
	program := filepath.Join(t.TempDir(), "conmon")
	shell, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, shell, 0o755); err != nil {
		t.Fatal(err)
	}
	monitor := func(argument string, flags uintptr) int {
		cmd := exec.Command(program, "-c", "while :; do sleep 1; done", "-r", argument)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
		})
		return cmd.Process.Pid
	}
	own := monitor("/usr/bin"+ours, 0)
	users := monitor("/usr/bin"+ours, syscall.CLONE_NEWNS)
	monitor("/usr/bin/crun", 0)
	monitor("/usr/bin"+ours, syscall.CLONE_NEWPID)

	in := Installation{Engine: grant.Podman, System: filetree.System{Root: "/"}}
	want := []int{own, users}
	slices.Sort(want)
	var got []int
	for range 100 { // until each has executed its program
		got = nil
		for _, p := range in.Monitors(ours) {
			got = append(got, p.PID)
		}
		if slices.Sort(got); slices.Equal(got, want) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("the monitors are %v, want %v", got, want)
}
