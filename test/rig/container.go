package rig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/failpoint"
)

// Dying is the node with programs that kill themselves at a failpoint; they must be built with the
// tag.
func (n *Node) Dying(point string) *Node {
	dying := *n
	dying.Env = append(slices.Clone(n.Env), failpoint.Variable+"="+point)
	return &dying
}

// On is the bundle with another node of the same directory, such as one of Dying.
func (b *Bundle) On(n *Node) *Bundle {
	there := *b
	there.Node = n
	return &there
}

// Killed reports whether SIGKILL ended the program.
func (r Result) Killed() bool { return r.Code == 128+int(syscall.SIGKILL) }

// Light removes the namespaces that the kernel takes longest to make, for tests with many
// containers.
func Light(s *specs.Spec) {
	s.Hostname = ""
	keep := []specs.LinuxNamespaceType{specs.PIDNamespace, specs.MountNamespace}
	s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces,
		func(ns specs.LinuxNamespace) bool { return !slices.Contains(keep, ns.Type) })
}

// NodePIDs gives the container the node's pids, so that its processes outlive its init.
func NodePIDs(s *specs.Spec) {
	s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces,
		func(ns specs.LinuxNamespace) bool { return ns.Type == specs.PIDNamespace })
}

// HeldUntil makes the runtime's create wait until a file exists. By then the runtime has made its
// state directory, but not yet the init. The returned function reports whether a create waits now.
// What waits outlives a runtime that is killed, and ends with the node's directory at the latest.
func (n *Node) HeldUntil(path string) (Edit, func() bool) {
	there := path + ".waits"
	script := fmt.Sprintf(": >%q; while [ -e %q ] && [ ! -e %q ]; do sleep 0.01; done", there, there, path)
	edit := func(s *specs.Spec) {
		s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{
			{Path: "/bin/sh", Args: []string{"sh", "-c", script},
				Env: []string{"PATH=" + os.Getenv("PATH")}}}}
	}
	return edit, func() bool { return exists(there) }
}

// Init is the pid of the container's first process in the real runtime's state; 0 if none lives.
func (b *Bundle) Init() int {
	var state struct{ Pid int }
	out, err := b.Node.Real("state", b.ID).Output()
	if err != nil || json.Unmarshal(out, &state) != nil || !Lives(state.Pid) {
		return 0
	}
	return state.Pid
}

// End kills the container's first process and removes the real runtime's state of it. It also
// removes the cgroups that a killed runtime leaves, because their device rules would keep the next
// container of the id from making its nodes. It uses only the kernel and the real runtime.
func (b *Bundle) End() {
	b.Node.T.Helper()
	b.KillInit()
	var r Result
	defer func() {
		if r.Code != 0 {
			b.Node.T.Logf("%s delete %s: %+v", b.Node.Runtime, b.ID, r)
		}
	}()
	// a runtime gives up soon on a cgroup whose last process is still ending
	Eventually(b.Node.T, "the runtime deletes "+b.ID, func() bool {
		if r = (Result{}); exists(filepath.Join(b.Node.Root, b.ID)) {
			r = Run(b.Node.Real("delete", "--force", b.ID))
		}
		return r.Code == 0
	})
	Eventually(b.Node.T, "the container's cgroups are gone", b.RemoveCgroups)
}

// RemoveCgroups ends what runs in the container's cgroups and removes them. It reports whether they
// are gone.
func (b *Bundle) RemoveCgroups() bool {
	for _, dir := range b.cgroups() {
		removeCgroup(dir)
	}
	return len(b.cgroups()) == 0
}

// KillInit kills the container's first process, and leaves the real runtime's state of it.
func (b *Bundle) KillInit() {
	b.Node.T.Helper()
	pid := b.Init()
	if pid == 0 {
		return
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	Eventually(b.Node.T, "a killed init is gone", func() bool { return !Lives(pid) })
}

// cgroups are the container's, one in each hierarchy. Only the hierarchies are listed, as tests
// look every few milliseconds, and filepath.Glob would read every directory on the way.
func (b *Bundle) cgroups() (all []string) {
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*")
	for _, hierarchy := range append(hierarchies, "/sys/fs/cgroup") {
		if dir := filepath.Join(hierarchy, b.Node.cgroup(), b.ID); onCgroups(dir) {
			all = append(all, dir)
		}
	}
	return all
}

// Processes are the pids in the container's cgroups.
func (b *Bundle) Processes() []int {
	var pids []int
	for _, dir := range b.cgroups() {
		text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for _, field := range strings.Fields(string(text)) {
			// 0: of another pid namespace
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// PodmanEnds waits at the end of the test for the processes that Podman starts behind its
// containers. conmon's clean-up writes below the node's directory after `podman run` has ended.
func (n *Node) PodmanEnds() {
	n.T.Cleanup(func() {
		Eventually(n.T, "Podman has cleaned up", func() bool {
			lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			return !slices.ContainsFunc(lines, func(line string) bool {
				args, _ := os.ReadFile(line)
				program, rest, _ := bytes.Cut(args, []byte{0})
				name := filepath.Base(string(program))
				return (name == "podman" || name == "conmon") && bytes.Contains(rest, []byte(n.Dir))
			})
		})
	})
}

// Lives reports whether a process exists and is no zombie.
func Lives(pid int) bool {
	state := processState(pid)
	return state != 0 && state != 'Z' && state != 'X'
}

// IsZombie reports whether a process has ended and its parent has not waited for it.
func IsZombie(pid int) bool { return processState(pid) == 'Z' }

// processState is the letter of /proc/PID/stat; 0 without the process.
func processState(pid int) byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if i := bytes.LastIndexByte(stat, ')'); err == nil && i > 0 && i+2 < len(stat) {
		return stat[i+2]
	}
	return 0
}

// Reboot gives the node another boot id, until the test ends.
func (n *Node) Reboot() {
	n.T.Helper()
	const bootID = "/proc/sys/kernel/random/boot_id"
	file := n.Write("boot_id", "00000000-1111-2222-3333-444444444444\n")
	if err := syscall.Mount(file, bootID, "", syscall.MS_BIND, ""); err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() {
		if err := syscall.Unmount(bootID, syscall.MNT_DETACH); err != nil {
			n.T.Error(err)
		}
	})
}

// HideRun gives the test an empty /run, so that programs with state at a fixed path do not use the
// machine's.
func (n *Node) HideRun() {
	n.T.Helper()
	if err := syscall.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() {
		for _, mount := range mountsBelow("/run") {
			_ = syscall.Unmount(mount, syscall.MNT_DETACH)
			if mount == "/run" {
				break // the next mount is the machine's
			}
		}
	})
}

// Elsewhere is a command in a pid namespace of its own, as in a container with the node's
// directories.
func (n *Node) Elsewhere(program string, args ...string) *exec.Cmd {
	return n.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc", program}, args...)...)
}

// CheckSound runs `gpuledger check` until a run finds the ledger sound and repairs nothing. The
// first run may repair. Runs after it may find that a container has ended whose processes were
// killed just before.
func (n *Node) CheckSound(when string) {
	n.T.Helper()
	r := n.CLI("check")
	for range 20 {
		if r.Code != 0 {
			break
		}
		if r = n.CLI("check"); r.Code == 0 && strings.Count(r.Stdout, "\n") == 1 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	n.T.Errorf("%s: gpuledger check: %+v; want it sound, and once without a repair", when, r)
}

// Files lists the ledger's files, below the node's directory.
func (n *Node) Files() []string {
	var files []string
	for _, dir := range []string{"state", "run"} {
		_ = filepath.WalkDir(filepath.Join(n.Dir, dir),
			func(path string, entry os.DirEntry, err error) error {
				if err == nil && !entry.IsDir() {
					files = append(files, strings.TrimPrefix(path, n.Dir+"/"))
				}
				return nil
			})
	}
	return files
}
