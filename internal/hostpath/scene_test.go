package hostpath

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// scene is a node whose directories of the ledger are in a directory of the test.
type scene struct {
	t       testing.TB
	dir     string
	node    Environment
	mounted []string
}

func newScene(t testing.TB) *scene {
	dir := t.TempDir()
	s := &scene{t: t, dir: dir}
	for _, sub := range []string{"dev", "sys/fs/cgroup", "state", "run", "bundle", "proc"} {
		s.mkdir(sub)
	}
	s.link("/proc/thread-self", "proc/thread-self")
	s.node = Environment{
		Host:   host.Host{Dev: s.path("dev"), Sys: s.path("sys"), Proc: s.path("proc")},
		Policy: &grant.Policy{StateDir: s.path("state"), RunDir: s.path("run")},
	}
	return s
}

func (s *scene) path(name string) string { return filepath.Join(s.dir, name) }

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) mkdir(name string) string {
	s.t.Helper()
	s.must(os.MkdirAll(s.path(name), 0o755))
	return s.path(name)
}

func (s *scene) touch(name string) string {
	s.t.Helper()
	s.must(os.WriteFile(s.path(name), nil, 0o644))
	return s.path(name)
}

func (s *scene) link(to, name string) string {
	s.t.Helper()
	s.must(os.Symlink(to, s.path(name)))
	return s.path(name)
}

// Where the kubelet puts a subPath, and what else it keeps for a container.
const (
	pod     = "/var/lib/kubelet/pods/0000"
	subPath = pod + "/volume-subpaths/v/c/0"
)

// ownMounts gives the test a mount namespace of its own, for its thread alone: it must not start
// another goroutine that looks at mounts.
func ownMounts(t *testing.T, empty ...string) {
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

// mount mounts a directory until the test ends; a bind mount without a type.
func (s *scene) mount(source, target, kind string) string {
	s.t.Helper()
	flags, data := uintptr(unix.MS_BIND), ""
	if kind == "tmpfs" {
		flags, data = 0, "size=64k"
	}
	s.must(os.MkdirAll(target, 0o755))
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		s.t.Fatalf("cannot mount %s on %s: %v", source, target, err)
	}
	s.mounted = append(s.mounted, target)
	return target
}

func (s *scene) unmount() {
	for _, target := range slices.Backward(s.mounted) {
		s.must(unix.Unmount(target, unix.MNT_DETACH))
	}
}
