package rig

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// Containerd is a real containerd of the node. It and its shims have their state below /run in a
// tmpfs that only this test's mount namespace has.
type Containerd struct {
	Node   *Node
	dir    string
	rootfs string
	daemon *exec.Cmd
}

// Containerd starts a containerd. At the end of the test it ends, with its shims and containers.
func (n *Node) Containerd() *Containerd {
	n.T.Helper()
	Need(n.T, "containerd", "ctr", "containerd-shim-runc-v2")
	c := &Containerd{Node: n, dir: filepath.Join(n.Dir, "c"),
		rootfs: filepath.Join(n.Bundle("image").Dir, "rootfs")}
	n.HideRun()
	n.T.Cleanup(c.end)
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		n.T.Fatal(err)
	}
	n.Write("c/config.toml", fmt.Sprintf(`version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[timeouts] # those of seconds: a slow machine is no failure
  "io.containerd.timeout.shim.cleanup" = "2m"
  "io.containerd.timeout.shim.load" = "2m"
  "io.containerd.timeout.task.state" = "2m"
[grpc]
  address = %q
`, c.dir+"/root", c.dir+"/state", c.socket()))
	c.Start()
	return c
}

func (c *Containerd) socket() string { return c.dir + "/sock" }

// Start starts the daemon, the first time or again.
func (c *Containerd) Start() {
	c.Node.T.Helper()
	log, err := os.OpenFile(c.dir+"/log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		c.Node.T.Fatal(err)
	}
	defer log.Close()
	c.daemon = c.Node.Command("containerd", "--config", c.dir+"/config.toml")
	c.daemon.Stdout, c.daemon.Stderr = log, log
	c.daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.daemon.Start(); err != nil {
		c.Node.T.Fatal(err)
	}
	Eventually(c.Node.T, "containerd answers", func() bool { return c.Ctr("containers", "list").Code == 0 })
}

// Kill ends the daemon as a crash does. Its shims and containers go on. It reports whether the
// daemon still ran.
func (c *Containerd) Kill() (ran bool) {
	ran = Lives(c.daemon.Process.Pid)
	_ = c.daemon.Process.Kill()
	_ = c.daemon.Wait()
	return ran
}

// Ctr calls containerd's own client.
func (c *Containerd) Ctr(args ...string) Result {
	return Run(c.Command(args...))
}

// Command is containerd's own client.
func (c *Containerd) Command(args ...string) *exec.Cmd {
	return c.Node.Command("ctr", append([]string{"--address", c.socket()}, args...)...)
}

// Shims are the processes between the daemon and its containers.
func (c *Containerd) Shims() []int { return c.shims() }

// Run runs a container of busybox behind gpuledger-runtime; options are those of `ctr run`.
func (c *Containerd) Run(id string, options []string, args ...string) Result {
	c.Node.T.Helper()
	wrapper := Binary(c.Node.T, "gpuledger-runtime", c.Node.Tags...)
	all := append([]string{"run", "--rootfs", "--runc-binary", wrapper, "--cgroup", c.Node.cgroup() + "/" +
		id}, options...)
	return c.Ctr(append(append(all, c.rootfs, id), args...)...)
}

// Log is the daemon's log.
func (c *Containerd) Log() string {
	log, _ := os.ReadFile(c.dir + "/log")
	return string(log)
}

// end kills the daemon, the shims that it started, and what runs in the node's cgroups.
func (c *Containerd) end() {
	if c.Node.T.Failed() {
		c.Node.T.Logf("containerd's log:\n%s", c.Log())
	}
	c.Kill()
	Eventually(c.Node.T, "containerd's shims are gone", func() bool {
		all := c.shims() // one that is just starting starts another
		for _, pid := range all {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(all) == 0
	})
	c.Node.removeCgroups()
}

// shims are the living processes that were given the socket of this containerd.
func (c *Containerd) shims() []int {
	var pids []int
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, line := range lines {
		argv, _ := os.ReadFile(line)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(line)))
		if err == nil && bytes.Contains(argv, []byte("containerd-shim")) &&
			bytes.Contains(argv, []byte(c.socket()+"\x00")) && Lives(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}
