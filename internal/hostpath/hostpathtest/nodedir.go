// Package hostpathtest makes a node's directories, links and mounts for tests of the packages that
// read paths of a node.
package hostpathtest

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// NodeDir is a directory of a test with the directories of a node: the host's, the ledger's and a
// container's bundle.
type NodeDir struct {
	T       testing.TB
	Dir     string
	mounted []string
}

// New makes the directories dev, sys, proc, state, run and bundle.
func New(t testing.TB) *NodeDir {
	d := &NodeDir{T: t, Dir: t.TempDir()}
	for _, sub := range []string{"dev", "sys/fs/cgroup", "state", "run", "bundle", "proc"} {
		d.Mkdir(sub)
	}
	d.Link("/proc/thread-self", "proc/thread-self")
	return d
}

// Host is the host that has these directories.
func (d *NodeDir) Host() host.Host {
	return host.Host{Dev: d.Path("dev"), Sys: d.Path("sys"), Proc: d.Path("proc")}
}

// Path is the path of a name below the directory.
func (d *NodeDir) Path(name string) string { return filepath.Join(d.Dir, name) }

// Must ends the test at an error.
func (d *NodeDir) Must(err error) {
	d.T.Helper()
	if err != nil {
		d.T.Fatal(err)
	}
}

// Mkdir makes a directory and returns its path.
func (d *NodeDir) Mkdir(name string) string {
	d.T.Helper()
	d.Must(os.MkdirAll(d.Path(name), 0o755))
	return d.Path(name)
}

// Touch makes an empty file and returns its path.
func (d *NodeDir) Touch(name string) string {
	d.T.Helper()
	d.Must(os.WriteFile(d.Path(name), nil, 0o644))
	return d.Path(name)
}

// Link makes a symbolic link and returns its path.
func (d *NodeDir) Link(to, name string) string {
	d.T.Helper()
	d.Must(os.Symlink(to, d.Path(name)))
	return d.Path(name)
}

// Where the kubelet puts a pod's volumes and a subPath of them.
const (
	Pod     = "/var/lib/kubelet/pods/0000"
	SubPath = Pod + "/volume-subpaths/v/c/0"
)

// OwnMounts gives the test a mount namespace of its own, for its thread alone: it must not start
// another goroutine that looks at mounts. The directories in empty are empty in it.
func OwnMounts(t *testing.T, empty ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("misses root, to mount: that a file is found at its other places is not shown")
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with its mount namespace
	err := errors.Join(unix.Unshare(unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	for _, dir := range empty {
		err = errors.Join(err, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"))
	}
	if err != nil {
		t.Fatalf("cannot make a mount namespace: %v", err)
	}
}

// Mount mounts a file system on a path of the node until Unmount; without a kind it is a bind mount
// of a directory or a file. It returns the path.
func (d *NodeDir) Mount(source, target, kind string) string {
	d.T.Helper()
	var st unix.Stat_t
	flags, data := uintptr(0), ""
	switch kind {
	case "":
		flags = unix.MS_BIND
		d.Must(unix.Stat(source, &st))
	case "tmpfs":
		data = "size=64k"
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR || kind != "" {
		d.Must(os.MkdirAll(target, 0o755))
	} else {
		d.Must(errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.WriteFile(target, nil, 0o600)))
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		d.T.Fatalf("cannot mount %s on %s: %v", source, target, err)
	}
	d.mounted = append(d.mounted, target)
	return target
}

// Tmpfs mounts a file system of its own on a path of the node, and returns the path.
func (d *NodeDir) Tmpfs(target string) string {
	d.T.Helper()
	return d.Mount("tmpfs", target, "tmpfs")
}

// Unmount takes all mounts away, the last one first.
func (d *NodeDir) Unmount() {
	for _, target := range slices.Backward(d.mounted) {
		d.Must(unix.Unmount(target, unix.MNT_DETACH))
		_ = os.Remove(target) // so that the next one can be a file there
	}
	d.mounted = nil
}

// ForgetMounts leaves the mounts so far to the test.
func (d *NodeDir) ForgetMounts() { d.mounted = nil }

// emptyDir is a volume of the pod's.
const emptyDir = Pod + "/volumes/kubernetes.io~empty-dir/v"

// MakePod makes the files and directories that the kubelet keeps for a pod.
func MakePod(t testing.TB) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(emptyDir, 0o755),
		os.WriteFile(Pod+"/etc-hosts", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// UsualSources are the sources of mounts of containers on a busy node, after MakePod. What they are
// is known without the list of mounts, which is long there.
var UsualSources = map[string]func(d *NodeDir) []string{
	"a pod's": func(d *NodeDir) []string {
		return []string{Pod + "/etc-hosts", emptyDir, d.Tmpfs(Pod + "/volumes/kubernetes.io~projected/token"),
			d.Tmpfs(Pod + "/volumes/kubernetes.io~empty-dir/in-memory"),
			d.Tmpfs("/var/lib/docker/containers/c/mounts/shm")}
	},
	"a pod's, where the kubelet's directory is a mount of itself": func(d *NodeDir) []string {
		d.Mount("/var/lib/kubelet", "/var/lib/kubelet", "")
		return []string{Pod + "/etc-hosts", emptyDir}
	},
	"directories of the node": func(d *NodeDir) []string {
		return []string{d.Path("bundle"), d.Path("dev"), "/etc/passwd", "/", d.Path("none")}
	},
	"the grants' records, by their path": func(d *NodeDir) []string {
		return []string{d.Tmpfs(d.Path("run/limits"))}
	},
}

// ForeignFileSystem is the source of a mount with a file system of its own that another program
// has made, beside the grants' records.
func (d *NodeDir) ForeignFileSystem() []string {
	d.Tmpfs(d.Path("run/limits"))
	return []string{d.Tmpfs(Pod + "/volumes/kubernetes.io~csi/v/mount")}
}
