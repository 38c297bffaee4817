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

// TestMonitors: a monitor counts if it is the engine's, calls the program, and is on the node. A
// process of a container, in a pid namespace of its own, keeps nobody from an undo by taking a
// monitor's name.
func TestMonitors(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("misses root, to make a pid namespace")
	}
	const name = "/gpuledger-runtime.of-this-test"
	shell, err := os.ReadFile("/bin/sh")
	must(t, err)
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755)) // for the user without root
	for _, program := range []string{"conmon", "containerd-shim-runc-v2"} {
		must(t, os.WriteFile(filepath.Join(dir, program), shell, 0o755))
	}
	monitor := func(program, runtime string, flags uintptr, user uint32) int {
		bundle := t.TempDir()
		must(t, os.WriteFile(filepath.Join(bundle, "runtime"), []byte(runtime), 0o644))
		cmd := exec.Command(filepath.Join(dir, program), "-c", "while :; do sleep 1; done", "-r", runtime)
		cmd.Dir = bundle
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Setpgid: true, Pdeathsig: syscall.SIGKILL,
			Credential: &syscall.Credential{Uid: user, Gid: user}}
		must(t, cmd.Start())
		t.Cleanup(func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
		})
		return cmd.Process.Pid
	}
	for program, of := range map[string][]grant.Engine{"conmon": {grant.Podman, grant.CRIO},
		"containerd-shim-runc-v2": {grant.Containerd, grant.Docker}} {
		ours := []int{monitor(program, "/usr/bin"+name, 0, 0)}
		usersPodman := []int{monitor(program, "/usr/bin"+name, syscall.CLONE_NEWNS, 0),
			monitor(program, "/usr/bin"+name, 0, 65534)}
		monitor(program, "/usr/bin/crun", 0, 0)
		monitor(program, "/usr/bin"+name, syscall.CLONE_NEWPID|syscall.CLONE_NEWNS, 0)
		for _, engine := range of {
			want := slices.Clone(ours)
			if engine == grant.Podman { // the others have no users without root
				want = append(want, usersPodman...)
			}
			slices.Sort(want)
			in := Installation{Engine: engine, System: filetree.System{Root: "/"}}
			var got []int
			for range 250 { // until each has executed its program
				got = nil
				for _, p := range in.Monitors(name) {
					got = append(got, p.PID)
				}
				if slices.Sort(got); slices.Equal(got, want) {
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: the monitors are %v, want %v", engine, got, want)
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
