package rig

import (
	"os/exec"
	"path/filepath"
)

// podmanConfig is the name of Podman's configuration in the node's directory.
const podmanConfig = "containers.conf"

// Podman is podman with storage, state and locks of the node's own, the node's hooks directory, and
// what a root without CAP_SYS_RESOURCE needs. Call HideRun first, because some of its state is
// always in /run.
func (n *Node) Podman(hooks string, args ...string) *exec.Cmd {
	n.T.Helper()
	Need(n.T, "podman", "conmon")
	runtime, err := exec.LookPath(n.Runtime)
	if err != nil {
		n.T.Fatal(err)
	}
	conf := n.Write(podmanConfig, "[engine]\nlock_type = \"file\"\n[containers]\n"+
		"default_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n")
	global := []string{"--root", filepath.Join(n.Dir, "storage"), "--runroot",
		filepath.Join(n.Dir, "runroot"), "--tmpdir", filepath.Join(n.Dir, "tmpdir"),
		"--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime",
		runtime, "--hooks-dir", hooks}
	cmd := n.Command("podman", append(global, args...)...)
	cmd.Env = append(cmd.Env, "CONTAINERS_CONF="+conf)
	return cmd
}

// PodmanRun runs a script of busybox's shell in a container of the bundle's root file system. The
// test does not end before what Podman starts behind the container.
func (b *Bundle) PodmanRun(hooks, script string, options ...string) Result {
	b.Node.T.Helper()
	b.Node.PodmanEnds()
	args := append([]string{"run", "--rm", "--name", b.ID, "--network", "none", "--cgroup-parent",
		b.Node.cgroup()}, options...)
	return Run(b.Node.Podman(hooks, append(args, "--rootfs", filepath.Join(b.Dir, "rootfs"), "/bin/busybox",
		"sh", "-c", script)...))
}
