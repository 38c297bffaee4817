// Package shim runs the shim's tests, which are C programs that print TAP, on a stage: a private
// mount namespace with the files of a container, and with the stand-in driver in place of the real
// one.
package shim

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/test/rig"
)

var built string // the folder of what build makes, for all tests of this run

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "shim-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	built = dir
	return rig.Main(m)
}

// variants are the compiler's flags: "plain", and the sanitizers of gcc.
var variants = map[string]string{
	"plain":     "-O2 -g",
	"addresses": "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer",
	"threads":   "-O1 -g -fsanitize=thread",
}

var builds = map[string]func() (string, error){}

func init() {
	for name, flags := range variants {
		builds[name] = sync.OnceValues(func() (string, error) { return build(name, flags) })
	}
}

// build compiles the proxies, the stand-in driver and the test programs. The stand-in is not under
// test, so it is never sanitized.
func build(name, flags string) (string, error) {
	dir := filepath.Join(built, name)
	for _, step := range []struct {
		cflags string
		args   []string
	}{
		{flags, []string{"../../shim/build.sh", dir + "/proxy"}},
		{variants["plain"], []string{"../fakedriver/build.sh", dir + "/driver"}},
		{flags, []string{"../../shim/test/build.sh", dir + "/bin", dir + "/driver"}},
	} {
		cmd := exec.Command(step.args[0], step.args[1:]...)
		cmd.Env = append(os.Environ(), "CFLAGS="+step.cflags)
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("cannot build with %s: %w\n%s", step.cflags, err, out)
		}
	}
	return dir, nil
}

func need(t *testing.T, variant string) string {
	t.Helper()
	dir, err := builds[variant]()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func sh(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("bash", "-euc", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// stage sets up the files of a container, as the edits of an admitted container do with mounts.
// /run and the loader's cache belong to this mount namespace only.
func stage(t *testing.T, variant string) string {
	t.Helper()
	dir := need(t, variant)
	rig.Mount(t, "tmpfs", "/run", "tmpfs", 0, "mode=755")
	sh(t, `mkdir -p /run/gpuledger/driver /run/proxy /run/fakedriver
cp -L `+dir+`/driver/usr/lib/*/lib{cuda,nvidia-ml}.so.1 /run/gpuledger/driver
cp `+dir+`/proxy/lib{cuda,nvidia-ml}.so.1 /run/proxy
cp `+dir+`/driver/run/fakedriver/devices /run/fakedriver
printf 'include /etc/ld.so.conf\n/run/proxy\n' >/run/ld.so.conf
ldconfig -X -C /run/ld.so.cache -f /run/ld.so.conf`)
	rig.Mount(t, "/run/ld.so.cache", "/etc/ld.so.cache", "", syscall.MS_BIND, "")
	fresh(t)
	return dir
}

// throttled is a stage with the proxy that a container with a share of compute gets.
func throttled(t *testing.T, variant string) string {
	t.Helper()
	dir := stage(t, variant)
	sh(t, "cp "+dir+"/proxy/libcuda-throttle.so.1 /run/proxy/libcuda.so.1")
	return dir
}

// shares is the grant that all of the C programs expect: 256 MiB on GPU 0, 128 MiB on GPU 1.
var shares = []grant.Share{
	{UUID: "GPU-00000000-fa4e-d41e-0000-000000000001", Memory: 256 * grant.MiB},
	{UUID: "GPU-00000000-fa4e-d41e-0000-000000000002", Memory: 128 * grant.MiB},
}

// fresh replaces the stage's grant by an unused one.
func fresh(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/run/fakedriver/devices"); err != nil {
		t.Fatalf("/run is the machine's, not a stage's: %v", err)
	}
	for _, file := range []string{"/run/gpuledger/limits", "/run/gpuledger/region", "/run/fakedriver/usage"} {
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	if err := limits.Ensure("/run/gpuledger", shares, 0, nil); err != nil {
		t.Fatal(err)
	}
}

// stuck is when a test is ended: long after the time that it takes, so that only a test that waits
// for ever is. Those that stop a process after each instruction take 40 s on a busy machine.
const stuck = 10 * time.Minute

// command runs a program in a process group of its own, and kills the group at the end, because
// tests leave children.
func command(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stuck)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	return out.String(), err
}

var plan = regexp.MustCompile(`(?m)^1\.\.(\d+)$`)

// tap runs a program and checks its output: every check is ok, and there are as many as the plan at
// its end says.
func tap(t *testing.T, env []string, args ...string) {
	t.Helper()
	out, err := command(t, env, args...)
	checks, bad := 0, 0
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "ok "):
			checks++
		case strings.HasPrefix(line, "not ok "):
			checks, bad = checks+1, bad+1
		}
	}
	m := plan.FindStringSubmatch(out)
	if err != nil || bad > 0 || checks == 0 || m == nil || m[1] != fmt.Sprint(checks) {
		t.Errorf("%s: %v, %d of %d checks failed\n%s", strings.Join(args, " "), err, bad, checks, out)
	}
}

// each runs every test of a program on a stage with an unused grant. wrap is a command that runs
// the program, such as setarch -R.
func each(t *testing.T, env []string, program string, only func(name string) bool, wrap ...string) {
	t.Helper()
	out, err := exec.Command(program, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, name := range strings.Fields(string(out)) {
		if only != nil && !only(name) {
			continue
		}
		ran++
		t.Run(name, func(t *testing.T) {
			fresh(t)
			tap(t, env, append(wrap, program, name)...)
		})
	}
	if ran == 0 {
		t.Errorf("%s has no such test", program)
	}
}
