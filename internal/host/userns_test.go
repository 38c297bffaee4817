package host

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// TestUserNamespaces runs the test's own program in two user namespaces: one that root makes with
// the identity map, and one that any user can make.
func TestUserNamespaces(t *testing.T) {
	const inside = "GPULEDGER_TEST_IN_USER_NAMESPACE"
	h := Default()
	if os.Getenv(inside) != "" {
		if h.InitialUserNamespace() || h.IsRoot() {
			os.Exit(3)
		}
		os.Exit(0)
	}
	if !h.InitialUserNamespace() {
		t.Skip(
			"this test runs in a user namespace itself: the first one is not tested")
	}
	if h.IsRoot() != (os.Geteuid() == 0) {
		t.Error("root of the first user namespace is root, and no other user is")
	}
	all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1<<32 - 1}}
	for name, attr := range map[string]*syscall.SysProcAttr{
		"the identity": {Cloneflags: syscall.CLONE_NEWUSER, UidMappings: all, GidMappings: all,
			GidMappingsEnableSetgroups: true},
		"one user": {Cloneflags: syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}},
	} {
		if name == "the identity" && os.Geteuid() != 0 {
			continue // only root may write that map
		}
		cmd := exec.Command("/proc/self/exe", "-test.run", "^TestUserNamespaces$")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = attr
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("in a user namespace with a map of %s it is taken for the first one: %v\n%s", name, err,
				out)
		}
	}
}

func TestUnknownUserNamespace(t *testing.T) {
	h := Host{Proc: t.TempDir()}
	if !h.InitialUserNamespace() {
		t.Error("a kernel without user namespaces has only the first one")
	}
	if err := os.MkdirAll(filepath.Join(h.Proc, "self/ns"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("user", filepath.Join(h.Proc, "self/ns/user")); err != nil { // ELOOP
		t.Fatal(err)
	}
	if h.InitialUserNamespace() {
		t.Error("an unknown user namespace is taken for the first one")
	}
}

// TestHasRootLooksAtFewProcesses: the last ones, and that at the path itself.
func TestHasRootLooksAtFewProcesses(t *testing.T) {
	h := Host{Proc: t.TempDir()}
	pinned, elsewhere := filepath.Join(h.Proc, "pinned"), filepath.Join(h.Proc, "elsewhere")
	const inside, processes = 1000, 2 * maxSearched // pids from 1000 on; the map of the first one is shown
	for i := range processes {
		dir := filepath.Join(h.Proc, strconv.Itoa(inside+i))
		err := os.MkdirAll(filepath.Join(dir, "ns"), 0o755)
		if err == nil {
			err = errors.Join(os.WriteFile(filepath.Join(dir, "uid_map"), []byte("0 100000 65536\n"), 0o600),
				os.WriteFile(filepath.Join(dir, "ns/user"), nil, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	user := func(pid int) string { return filepath.Join(h.Proc, strconv.Itoa(pid), "ns/user") }
	for _, path := range []string{pinned, elsewhere} {
		pid := inside
		if path == pinned {
			pid = inside + processes - maxSearched
		}
		if err := os.Link(user(pid), path); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]bool{pinned: true, elsewhere: false, user(inside): true} {
		if has, known := h.HasRoot(path); has || known != want {
			t.Errorf("%s: has root %v, known %v", path, has, known)
		}
	}
}
