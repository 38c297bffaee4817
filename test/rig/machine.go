package rig

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// A machine is the environment in which container engines run: mount, pid, network, ipc and cgroup
// namespaces of its own. They use their standard paths in it. They reach no network, and no port or
// socket collides. When its first process ends, no process and no mount of it is left. Its cgroups
// are gone once the caller has removed their one directory.

// machineVar says which process of a new machine a re-executed test binary is.
const machineVar = "GPULEDGER_TEST_MACHINE"

// binariesVar names the directory whose bin/ has the programs under test. A machine cannot download
// what a build may need.
const binariesVar = "GPULEDGER_TEST_BINARIES"

// Stopped is the status of a machine whose caller was told to end.
const Stopped = 130

// InMachine runs this test binary once more, in a new machine, and returns its status. The binary's
// main must begin with EnterMachine. The programs under test are those in the module's bin/.
func InMachine(module string, layout Layout, args []string, env ...string) int {
	name := fmt.Sprintf("gpuledger-machine-%d", os.Getpid())
	defer removeMachineCgroups(name)
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(append(os.Environ(), machineVar+"=first "+name, layoutVar+"="+string(layout),
		binariesVar+"="+module), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC}
	stop := make(chan os.Signal, 1)
	// go test sends the last one at its time limit
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	defer signal.Stop(stop)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "rig: cannot make a machine:", err)
		return 1
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			return 0
		}
	case <-stop:
		_ = cmd.Process.Kill()
		<-ended
		return Stopped
	}
	return max(cmd.ProcessState.ExitCode(), 1)
}

// EnterMachine does a re-executed binary's part in making a machine. It reports whether the caller
// is inside.
func EnterMachine() bool {
	part, name, _ := strings.Cut(os.Getenv(machineVar), " ")
	var err error
	switch part {
	case "":
		return false
	case "first":
		err = begin(name)
	case "init":
		var status int
		if status, err = beInit(); err == nil {
			os.Exit(status)
		}
	default:
		binaries = os.Getenv(binariesVar)
		if err = layFiles(Layout(os.Getenv(layoutVar))); err == nil {
			err = os.Setenv("TMPDIR", temporary)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "rig: cannot make a machine:", err)
		os.Exit(1)
	}
	return true
}

// begin puts the machine's first process into cgroups and a cgroup namespace of its own. A
// namespace is the thread's that asks for it, and an exec makes it the process's.
func begin(name string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, root := range hierarchies() {
		if err := enterCgroup(filepath.Join(root, name)); err != nil {
			return err
		}
	}
	runtime.LockOSThread()
	if err := cmp.Or(syscall.Unshare(syscall.CLONE_NEWCGROUP), os.Setenv(machineVar, "init")); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// beInit is the machine's process 1: it starts the tests, reaps, and returns their status. The
// kernel kills all others when it ends.
func beInit() (int, error) {
	if err := os.Setenv(machineVar, "tests"); err != nil {
		return 0, err
	}
	tests, err := syscall.ForkExec("/proc/self/exe", os.Args,
		&syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return 0, err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 0, err
		case pid == tests && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == tests:
			return status.ExitStatus(), nil
		}
	}
}

// hierarchies are the mount points of cgroups.
func hierarchies() []string {
	if exists("/sys/fs/cgroup/cgroup.controllers") {
		return []string{"/sys/fs/cgroup"}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	var roots []string
	for _, line := range strings.Split(string(mounts), "\n") {
		if f := strings.Fields(line); len(f) > 2 && (f[2] == "cgroup" || f[2] == "cgroup2") &&
			strings.HasPrefix(f[1], "/sys/fs/cgroup/") {
			roots = append(roots, f[1])
		}
	}
	return roots
}

// enterCgroup makes a cgroup and moves this process into it. A new cpuset of v1 is empty and
// accepts no process.
func enterCgroup(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		if have, err := os.ReadFile(filepath.Join(dir, file)); err == nil &&
			strings.TrimSpace(string(have)) == "" && !exists(dir+"/cgroup.controllers") {
			parents, _ := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
			if err := os.WriteFile(filepath.Join(dir, file), parents, 0); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(dir+"/cgroup.procs", []byte("0"), 0)
}

// removeMachineCgroups removes the cgroups that InMachine has made. A cgroup stays busy for a
// moment after its last process.
func removeMachineCgroups(name string) {
	for range 3000 {
		busy := false
		for _, root := range hierarchies() {
			if dir := filepath.Join(root, name); exists(dir) {
				removeCgroup(dir)
				busy = busy || exists(dir)
			}
		}
		if !busy {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	fmt.Fprintln(os.Stderr, "rig: cgroups are left:", name)
}

// overlaid are directories with the host's files. The machine's changes stay in memory.
var overlaid = []string{"/etc", "/opt", "/var/lib", "/var/log"}

// empty are directories that are empty at first. They are never on an overlay, because engines make
// overlays there.
var empty = []string{"/etc/cdi", "/etc/cni", "/etc/containerd", "/etc/containers", "/etc/crio", "/etc/docker",
	"/etc/gpuledger", "/etc/nri", "/opt/nri",
	"/var/lib/cni", "/var/lib/containerd", "/var/lib/containers", "/var/lib/crio", "/var/lib/docker",
	"/var/lib/gpuledger", "/var/lib/kubelet"}

// temporary is a directory that disappears with the machine, however that ends.
const temporary = "/run/tmp"

// layFiles makes the machine's file system.
func layFiles(layout Layout) error {
	steps := []func() error{
		func() error { return mount("proc", "/proc", "proc", "") },
		func() error { return layCgroups(layout) },
		func() error { return mount("tmpfs", "/run", "tmpfs", "mode=755") },
		overlays, devices,
		func() error { return exec.Command("ip", "link", "set", "lo", "up").Run() },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	for _, dir := range append(empty, "/run/lock", temporary) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := mount("tmpfs", dir, "tmpfs", "mode=755"); err != nil {
			return err
		}
	}
	// as on a node; all peers are in this machine
	return syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, "")
}

func mount(source, target, kind, data string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount(source, target, kind, 0, data); err != nil {
		return fmt.Errorf("cannot mount %s on %s: %w", kind, target, err)
	}
	return nil
}

func overlays() error {
	const upper = "/run/changes"
	for _, dir := range overlaid {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		up, work := upper+dir+"/upper", upper+dir+"/work"
		for _, made := range []string{up, work} {
			if err := os.MkdirAll(made, 0o755); err != nil {
				return err
			}
		}
		if err := mount("overlay", dir, "overlay",
			fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir, up, work)); err != nil {
			return err
		}
	}
	return nil
}

// layCgroups makes the machine's part of each hierarchy appear as the root.
func layCgroups(layout Layout) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	v2Only := exists("/sys/fs/cgroup/cgroup.controllers")
	if err := syscall.Unmount("/sys/fs/cgroup", syscall.MNT_DETACH); err != nil {
		return err
	}
	if v2Only || layout == V2 {
		if err := mount("cgroup2", "/sys/fs/cgroup", "cgroup2", ""); err != nil {
			return err
		}
		return delegate("/sys/fs/cgroup")
	}
	if err := mount("tmpfs", "/sys/fs/cgroup", "tmpfs", "mode=755"); err != nil {
		return err
	}
	for _, line := range strings.Split(string(mounts), "\n") {
		if f := strings.Fields(line); len(f) > 3 && strings.HasPrefix(f[1], "/sys/fs/cgroup/") {
			if err := layHierarchy(f[1], f[2], f[3], layout); err != nil {
				return err
			}
		}
	}
	return nil
}

func layHierarchy(target, kind, options string, layout Layout) error {
	switch {
	case kind == "cgroup2" && layout != V1:
		return mount("cgroup2", target, "cgroup2", "")
	case kind != "cgroup":
		return nil
	}
	controllers := v1Controllers(options)
	if err := mount("cgroup", target, "cgroup", strings.Join(controllers, ",")); err != nil {
		return err
	}
	if len(controllers) > 1 { // cpu,cpuacct is found as cpu and as cpuacct
		for _, controller := range controllers {
			if link := filepath.Join(filepath.Dir(target), controller); link != target {
				_ = os.Symlink(filepath.Base(target), link)
			}
		}
	}
	return nil
}

// v1Controllers are a hierarchy's, out of its mount options.
func v1Controllers(options string) []string {
	var controllers []string
	for _, option := range strings.Split(options, ",") {
		switch option {
		case "rw", "ro", "relatime", "nosuid", "nodev", "noexec", "xattr", "clone_children", "cpuset_v2_mode":
		default:
			if !strings.HasPrefix(option, "release_agent=") {
				controllers = append(controllers, option)
			}
		}
	}
	return controllers
}

// delegate enables the controllers for cgroups below. For that v2 wants all processes in leaves.
func delegate(root string) error {
	leaf := root + "/init"
	if err := os.MkdirAll(leaf, 0o755); err != nil {
		return err
	}
	procs, _ := os.ReadFile(root + "/cgroup.procs")
	for _, pid := range strings.Fields(string(procs)) {
		if err := os.WriteFile(leaf+"/cgroup.procs", []byte(pid), 0); err != nil {
			return err
		}
	}
	controllers, _ := os.ReadFile(root + "/cgroup.controllers")
	for _, controller := range strings.Fields(string(controllers)) {
		_ = os.WriteFile(root+"/cgroup.subtree_control", []byte("+"+controller), 0)
	}
	return nil
}

// nodes are the machine's devices: the usual ones, and GPUs without a driver. Their names are those
// of the simulated node.
var nodes = []struct {
	name         string
	major, minor int
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
	{"kmsg", 1, 11}, {"fuse", 10, 229},
	{"nvidia0", 195, 0}, {"nvidia1", 195, 1}, {"nvidiactl", 195, 255},
}

// devices gives the machine a /dev of its own, so that no clean-up reaches the host's.
func devices() error {
	if err := mount("tmpfs", "/dev", "tmpfs", "mode=755"); err != nil {
		return err
	}
	for _, n := range nodes {
		path := "/dev/" + n.name
		if err := cmp.Or(syscall.Mknod(path, syscall.S_IFCHR|0o666, n.major<<8|n.minor),
			os.Chmod(path, 0o666)); err != nil {
			return fmt.Errorf("cannot make %s: %w", path, err)
		}
	}
	for link, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0",
		"stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"} {
		if err := os.Symlink(to, "/dev/"+link); err != nil {
			return err
		}
	}
	return cmp.Or(mount("devpts", "/dev/pts", "devpts", "newinstance,ptmxmode=666,mode=620"),
		mount("tmpfs", "/dev/shm", "tmpfs", "mode=1777"), mount("mqueue", "/dev/mqueue", "mqueue", ""))
}
