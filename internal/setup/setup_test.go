package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// placeVar makes the test binary the program, in a place of its own: a process that has gone to a node cannot come back.
const placeVar = "GPULEDGER_TEST_SETUP"

func TestMain(m *testing.M) {
	if dir := os.Getenv(placeVar); dir != "" {
		os.Exit(Main(os.Args, Place{Tree: dir + "/tree", Node: dir + "/node"}))
	}
	os.Exit(m.Run())
}

// scene is an image's tree and a node, whose programs write down how they are called.
type scene struct {
	*testing.T
	dir string
}

// said is how the programs of a node answer: each writes its name and arguments to /calls.
const said = "#!/bin/busybox sh\necho \"${0##*/} $*\" >>/calls\n"

func newScene(t *testing.T) scene {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: that a node is set up from within a container is not shown")
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("busybox is not installed: that a node is set up from within a container is not shown")
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	s := scene{t, t.TempDir()}
	s.write("node/bin/busybox", string(program))
	s.write("node/usr/bin/systemctl", said)
	s.write("node/usr/bin/udevadm", said)
	s.write("node/run/systemd/system/here", "")
	s.write("tree/usr/bin/gpuledger", said)
	s.write("tree/usr/bin/gpuledger-runtime", "first")
	s.link("tree/usr/bin/gpuledger-runtime.crio", "gpuledger-runtime")
	s.write("tree/usr/lib/gpuledger/shim-1/libcuda.so.1", "first")
	s.link("tree/usr/lib/gpuledger/shim", "shim-1")
	s.write("tree/etc/gpuledger/config.toml", "# the default\n")
	return s
}

func (s scene) write(name, content string) {
	s.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		s.Fatal(err)
	}
}

func (s scene) link(name, target string) {
	s.Helper()
	if err := os.Symlink(target, filepath.Join(s.dir, name)); err != nil {
		s.Fatal(err)
	}
}

// run is the program; it returns its status and what it said.
func (s scene) run(args ...string) (int, string) {
	s.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), placeVar+"="+s.dir)
	out, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), string(out)
}

func (s scene) must(args ...string) {
	s.Helper()
	if status, out := s.run(args...); status != 0 {
		s.Fatalf("gpuledger-setup %v: status %d\n%s", args, status, out)
	}
}

// on is what the node has of ours, with contents; links show where they lead.
func (s scene) on() []string {
	s.Helper()
	var have []string
	root := filepath.Join(s.dir, "node")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, root)
		if err != nil || !strings.Contains(name, "gpuledger") {
			return err
		}
		switch {
		case entry.IsDir():
			have = append(have, name+"/")
		case entry.Type()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			have = append(have, name+" -> "+target)
		case name == "/usr/bin/gpuledger", name == record:
			have = append(have, name)
		default:
			content, _ := os.ReadFile(path)
			have = append(have, fmt.Sprintf("%s: %s", name, strings.TrimSpace(string(content))))
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	return have
}

func (s scene) calls() []string {
	text, _ := os.ReadFile(filepath.Join(s.dir, "node/calls"))
	_ = os.Remove(filepath.Join(s.dir, "node/calls"))
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func (s scene) wants(what string, got []string, want ...string) {
	s.Helper()
	if !slices.Equal(got, want) {
		s.Errorf("%s:\n%s\nwant:\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestInstallUpgradeRemove(t *testing.T) {
	s := newScene(t)
	s.must("install", "--engine=crio", "--as-default", "--mode=report")
	s.wants("installed", s.on(), "/etc/gpuledger/", "/etc/gpuledger/config.toml: # the default",
		"/usr/bin/gpuledger", "/usr/bin/gpuledger-runtime: first", "/usr/bin/gpuledger-runtime.crio -> gpuledger-runtime",
		"/usr/lib/gpuledger/", "/usr/lib/gpuledger/setup.list", "/usr/lib/gpuledger/shim -> shim-1", "/usr/lib/gpuledger/shim-1/", "/usr/lib/gpuledger/shim-1/libcuda.so.1: first")
	s.wants("called", s.calls(), "systemctl daemon-reload", "udevadm control --reload", "systemctl start gpuledger-inventory.path",
		"gpuledger inventory refresh", "gpuledger configure crio --restart --as-default --mode report")

	s.write("node/etc/gpuledger/config.toml", "# mine\n")
	s.write("tree/usr/bin/gpuledger-runtime", "second")
	lib := s.dir + "/tree/usr/lib/gpuledger/"
	if err := errors.Join(os.Rename(lib+"shim-1", lib+"shim-2"), os.Remove(lib+"shim")); err != nil {
		t.Fatal(err)
	}
	s.link("tree/usr/lib/gpuledger/shim", "shim-2")
	mapped, err := os.Open(s.dir + "/node/usr/bin/gpuledger-runtime")
	if err != nil {
		t.Fatal(err)
	}
	defer mapped.Close()
	s.must("install", "--engine=crio")
	s.wants("upgraded", s.on(), "/etc/gpuledger/", "/etc/gpuledger/config.toml: # mine",
		"/usr/bin/gpuledger", "/usr/bin/gpuledger-runtime: second", "/usr/bin/gpuledger-runtime.crio -> gpuledger-runtime",
		"/usr/lib/gpuledger/", "/usr/lib/gpuledger/setup.list", "/usr/lib/gpuledger/shim -> shim-2", "/usr/lib/gpuledger/shim-2/", "/usr/lib/gpuledger/shim-2/libcuda.so.1: first")
	old := make([]byte, 5)
	if _, err := mapped.ReadAt(old, 0); err != nil || string(old) != "first" {
		t.Errorf("a file in use became %q (%v)", old, err)
	}
	s.calls()

	s.must("remove", "--engine=crio")
	kept := []string{"/etc/gpuledger/", "/etc/gpuledger/config.toml: # mine", "/run/gpuledger-setup.removed: ", "/usr/bin/gpuledger-runtime: second",
		"/usr/bin/gpuledger-runtime.crio -> gpuledger-runtime", "/usr/lib/gpuledger/", "/usr/lib/gpuledger/setup.list"}
	s.wants("removed, but for what ends containers", s.on(), kept...)
	s.wants("called", s.calls(), "gpuledger configure crio --undo --restart", "systemctl stop gpuledger-inventory.path", "systemctl daemon-reload")
	s.must("remove", "--engine=crio")
	s.wants("removed again", s.on(), kept...)
	s.must("install", "--engine=crio")
	s.must("remove", "--engine=crio")
	s.wants("installed and removed again", s.on(), kept...)
	if err := os.Remove(s.dir + "/node" + removedInThisBoot); err != nil { // the next boot
		t.Fatal(err)
	}
	s.must("remove", "--engine=crio")
	s.wants("removed after a boot", s.on(), "/etc/gpuledger/", "/etc/gpuledger/config.toml: # mine")
	s.must("remove", "--engine=crio")
}

// TestLinksLeadSomewhere at any moment of an upgrade: a container that starts meanwhile finds the shim, the old or the new.
func TestLinksLeadSomewhere(t *testing.T) {
	s := newScene(t)
	root, err := os.OpenRoot(s.dir + "/tree")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	files, err := (&node{tree: root.FS()}).files()
	if err != nil {
		t.Fatal(err)
	}
	s.wants("in the order of installing", files, "/etc/gpuledger/config.toml", "/usr/bin/gpuledger", "/usr/bin/gpuledger-runtime",
		"/usr/lib/gpuledger/shim-1/libcuda.so.1", "/usr/bin/gpuledger-runtime.crio", "/usr/lib/gpuledger/shim")
}

// TestKilledWhileItRemoves: the program that undoes an engine's configuration is gone already, and the rest goes.
func TestKilledWhileItRemoves(t *testing.T) {
	s := newScene(t)
	s.must("install", "--engine=crio")
	s.must("remove", "--engine=crio")
	s.write("node"+record, "/usr/bin/gpuledger\n/usr/bin/gpuledger-runtime\n/usr/lib/gpuledger/shim-1/libcuda.so.1\n")
	s.write("node/usr/lib/gpuledger/shim-1/libcuda.so.1", "first")
	s.must("remove", "--engine=crio")
	if have := s.on(); slices.Contains(have, "/usr/lib/gpuledger/shim-1/") || !slices.Contains(have, "/usr/bin/gpuledger-runtime: first") {
		t.Errorf("%v", have)
	}
}

// TestOthersPackageStays: what somebody else has installed is not replaced, and its engine is not touched.
func TestOthersPackageStays(t *testing.T) {
	s := newScene(t)
	s.write("node/usr/bin/gpuledger-runtime", "the package's")
	before := s.on()
	status, out := s.run("install", "--engine=containerd")
	if status != 1 || !strings.Contains(out, "/usr/bin/gpuledger-runtime is there already") {
		t.Errorf("status %d: %s", status, out)
	}
	s.wants("touched", s.on(), before...)
	s.wants("called", s.calls(), "")
}

// TestKilledHalfWay: what a killed set-up left behind is known to be ours.
func TestKilledHalfWay(t *testing.T) {
	s := newScene(t)
	s.write("node"+record, "/usr/bin/gpuledger\n/usr/bin/gpuledger-runtime\n")
	s.write("node/usr/bin/gpuledger-runtime", "fi")
	s.must("install", "--engine=containerd")
	if have := s.on(); !slices.Contains(have, "/usr/bin/gpuledger-runtime: first") {
		t.Errorf("%v", have)
	}
}

// TestEngineThatRefusesKeepsTheFiles: they cannot go while an engine calls them.
func TestEngineThatRefusesKeepsTheFiles(t *testing.T) {
	s := newScene(t)
	s.must("install", "--engine=containerd")
	s.write("node/usr/bin/gpuledger", "#!/bin/busybox sh\nexit 1\n")
	before := s.on()
	if status, out := s.run("remove", "--engine=containerd"); status != 1 || !strings.Contains(out, "cannot run gpuledger [configure containerd --undo --restart]") {
		t.Errorf("status %d: %s", status, out)
	}
	s.wants("left", s.on(), before...)
}

func TestUsage(t *testing.T) {
	s := newScene(t)
	for _, args := range [][]string{{}, {"install"}, {"remove"}, {"install", "--engine=crio", "more"}, {"remove", "--engine=crio", "--as-default"}, {"wait", "--engine=crio"}, {"upgrade"}} {
		if status, out := s.run(args...); status != 2 || !strings.HasPrefix(out, "usage: ") {
			t.Errorf("%v: status %d\n%s", args, status, out)
		}
	}
}
