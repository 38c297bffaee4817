// Package rig gives tests a simulated node with the real binaries and real containers on it.
//
// A test package calls Main from its TestMain. Everything then runs in a mount namespace of its
// own, because a spec without one mounts into its runtime's. No mount of a test reaches the
// machine, and no clean-up reaches through a mount.
package rig

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// layoutVar passes the wanted cgroup layout to the re-executed test binary. Its presence also says
// that the namespace exists.
const layoutVar = "GPULEDGER_TEST_CGROUP"

// builtVar passes on the directory of the programs under test, so that a re-executed test builds
// none again.
const builtVar = "GPULEDGER_TEST_BUILT"

// Layout is what a test sees at /sys/fs/cgroup.
type Layout string

// The layouts. Hybrid machines (v1 with a mount of v2 beside it) can show each of them.
const (
	AsIs Layout = "host"
	V1   Layout = "v1" // crun 1.8 refuses a hybrid
	V2   Layout = "v2" // alone; on a hybrid machine without cpu, memory and pids, but with device rules
)

// Main runs the tests of a package in a private mount namespace. Without root it skips them all and
// prints that.
func Main(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Println("SKIP: these tests need root: they start containers")
		return 0
	}
	if os.Getenv(layoutVar) == "" {
		return again(AsIs, nil, os.Args[1:])
	}
	if err := Private(Layout(os.Getenv(layoutVar))); err != nil {
		fmt.Fprintln(os.Stderr, "rig:", err)
		return 1
	}
	if binaries = os.Getenv(builtVar); binaries != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "rig-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "rig:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
	return m.Run()
}

// Under runs the calling test once more, alone, with this layout of cgroups. It reports whether it
// did so; the test then returns.
func Under(t *testing.T, layout Layout) bool {
	t.Helper()
	if os.Getenv(layoutVar) == string(layout) {
		return false
	}
	if layout == V1 && !exists("/sys/fs/cgroup/devices") {
		t.Skip("this machine has no cgroup v1: its device rules are not tested here")
	}
	logged := &testLines{}
	if again(layout, logged, []string{"-test.run", "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$",
		"-test.v", "-test.count=1"}) != 0 {
		t.Errorf("failed under cgroup %s; what it logged last:\n%s", layout, logged)
	}
	return true
}

// testLines keeps the last lines that a test file logged. They repeat why a test failed where the
// logs of engines follow it.
type testLines struct {
	rest []byte // of a line that has not ended
	kept []string
}

var testLine = regexp.MustCompile(`^\s+\w+_test\.go:\d+: `)

func (l *testLines) Write(text []byte) (int, error) {
	l.rest = append(l.rest, text...)
	for {
		line, rest, ended := bytes.Cut(l.rest, []byte("\n"))
		if !ended {
			return len(text), nil
		}
		l.rest = rest
		if testLine.Match(line) {
			l.kept = append(l.kept, string(line))
			l.kept = l.kept[max(0, len(l.kept)-20):]
		}
	}
}

func (l *testLines) String() string { return strings.Join(l.kept, "\n") }

// again runs the test binary in a new mount namespace and returns its status. What it prints is
// copied to record, unless that is nil.
func again(layout Layout, record io.Writer, args []string) int {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if record != nil {
		cmd.Stdout = io.MultiWriter(os.Stdout, record)
	}
	cmd.Env = append(os.Environ(), layoutVar+"="+string(layout), builtVar+"="+binaries)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second // for what has been left behind and holds the output
	if err := cmd.Run(); cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, "rig:", err)
		return 1
	}
	if !cmd.ProcessState.Success() {
		return 1
	}
	return 0
}

// Private detaches the mount namespace from its parent's and lays cgroups out.
func Private(layout Layout) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make mounts private: %w", err)
	}
	switch layout {
	case V1:
		if exists("/sys/fs/cgroup/unified") {
			if err := syscall.Unmount("/sys/fs/cgroup/unified", syscall.MNT_DETACH); err != nil {
				return err
			}
			// crun 1.8 writes plain files into the empty mount point; these would stay on the
			// machine.
			return syscall.Mount("tmpfs", "/sys/fs/cgroup/unified", "tmpfs", 0, "")
		}
	case V2:
		if exists("/sys/fs/cgroup/cgroup.controllers") {
			return nil
		}
		if err := syscall.Unmount("/sys/fs/cgroup", syscall.MNT_DETACH); err != nil {
			return err
		}
		return syscall.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, "")
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

var binaries string // of this run of the test binary

// building is held while Binary builds: callers in several goroutines would all link the same file.
var building sync.Mutex

// Binary builds a command of this module, once for each run, and returns its path. With the tag
// "failpoint" it dies at the line that GPULEDGER_FAILPOINT names.
func Binary(t testing.TB, name string, tags ...string) string {
	t.Helper()
	dir := filepath.Join(binaries, strings.Join(append([]string{"bin"}, tags...), "-"))
	path := filepath.Join(dir, name)
	building.Lock()
	defer building.Unlock()
	if exists(path) {
		return path
	}
	linked := ""
	if name == "gpuledger-runtime" { // as make build does
		buildFront(t)
		tags, linked = append(slices.Clone(tags), "front"), "-E gpuledger_front"
	}
	build := exec.Command("go", "build", "-p", "2", "-trimpath", "-tags", strings.Join(tags, ","),
		"-ldflags", linked, "-o", path, "github.com/gpuledger/gpuledger/cmd/"+name)
	build.Env = append(os.Environ(), "CGO_CFLAGS=-O2 -Wno-deprecated-declarations")
	if name != "gpuledger" {
		build.Env = append(build.Env, "CGO_ENABLED=0")
	}
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build %s: %v\n%s", name, err, out)
	}
	return path
}

// buildFront makes the source of the wrapper's first instructions.
func buildFront(t testing.TB) {
	t.Helper()
	module, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Dir(strings.TrimSpace(string(module)))
	build := exec.Command(filepath.Join(root, "front/build.sh"), runtime.GOARCH,
		filepath.Join(root, "cmd/gpuledger-runtime/front_linux_"+runtime.GOARCH+".s"))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the front: %v\n%s", err, out)
	}
}

// Need skips a test whose tool is missing.
func Need(t testing.TB, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed: what this test shows about it is not shown", tool)
		}
	}
}

// moreVar is set by make test-more.
const moreVar = "GPULEDGER_TEST_MORE"

// More skips a test that make test has no time for. make test-more names it and runs it
// (TestMoreIsRun).
func More(t testing.TB) {
	t.Helper()
	if os.Getenv(moreVar) == "" {
		t.Skipf("%s is not set: what this test shows is shown by make test-more", moreVar)
	}
}

// NeedRuntime skips a test that a runtime cannot run on this machine.
func NeedRuntime(t testing.TB, runtime string) {
	t.Helper()
	Need(t, runtime)
	if runtime == "crun" && os.Getenv(layoutVar) == string(V2) && !mayRaiseLimits() {
		t.Skip("crun raises RLIMIT_MEMLOCK for its device rules on cgroup v2, and root lacks " +
			"CAP_SYS_RESOURCE here: crun on v2 is not tested")
	}
}

// mayRaiseLimits reports whether root has CAP_SYS_RESOURCE, which some sandboxes take away.
func mayRaiseLimits() bool {
	var limit syscall.Rlimit
	if syscall.Getrlimit(rlimitMemlock, &limit) != nil {
		return false
	}
	if limit.Max == ^uint64(0) {
		return true
	}
	raised := syscall.Rlimit{Cur: limit.Cur, Max: limit.Max + 1}
	return syscall.Setrlimit(rlimitMemlock, &raised) == nil
}

const rlimitMemlock = 8 // RLIMIT_MEMLOCK on Linux

// Toolkit is a program of NVIDIA's container toolkit, as make peers builds it. A machine cannot
// download what the build needs. The toolkit's module is separate from gpuledger's, so that its
// requirements are not gpuledger's.
func Toolkit(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	for ; err == nil && !exists(filepath.Join(dir,
		"test/tools/nvidia-container-toolkit")); dir = filepath.Dir(dir) {
		if dir == "/" {
			t.Fatal("cannot find NVIDIA's toolkit: no directory above has test/tools")
		}
	}
	path := filepath.Join(dir, "bin/peers", name)
	if !exists(path) {
		t.Fatalf("%s is not there; run make peers", path)
	}
	return path
}
