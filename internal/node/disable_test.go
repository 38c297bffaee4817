package node_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// pausable is a node whose state directory may be missing, and a clock.
func pausable(t *testing.T) (n *node.Node, now *time.Time) {
	dir, clock := t.TempDir(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h := host.Default()
	h.Now = func() time.Time { return clock }
	p := grant.Policy{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run")}
	return &node.Node{Policy: p, Host: h, Ledger: ledger.Open(ledger.Options{
		State: p.StateDir, Run: p.RunDir, Host: h})}, &clock
}

// Disabling needs neither the broken disk nor its files. If it was done without them, it ends with
// the boot.
func TestDisableWithoutAStateDirectory(t *testing.T) {
	n, now := pausable(t)
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(n.Policy.StateDir, "no directory")
	p, err := n.Disable(time.Minute)
	if err != nil || p.BootID == "" {
		t.Fatalf("%+v, %v", p, err)
	}
	if n.Mode() != grant.Disabled {
		t.Fatal("Disable succeeds, and it is not disabled")
	}
	file := filepath.Join(n.Policy.RunDir, "disabled.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if *now = now.Add(time.Minute); n.Mode() == grant.Disabled {
		t.Error("its time is over and it is disabled")
	}
	*now = now.Add(-time.Minute)

	write(file, strings.Replace(string(text), p.BootID, "00000000-0000-0000-0000-000000000000", 1))
	if n.Mode() == grant.Disabled {
		t.Error("the file of another boot disables this one")
	}
	write(file, string(text))
	if err := os.Chown(file, 65534, 65534); err != nil {
		t.Skip("misses root, to give a file away: ", err)
	}
	if n.Mode() == grant.Disabled {
		t.Error("another user's file disables the node")
	}
	if err := os.Chown(file, 0, 0); err != nil {
		t.Fatal(err)
	}
	if e, err := n.Enable(); !e.Was || e.For != nil || err != nil || n.Mode() == grant.Disabled {
		t.Errorf("enable: %+v, %v, and the mode is %s", e, err, n.Mode())
	}

	// With the state directory again, the file is written there, and no earlier one counts.
	write(file, string(text))
	if err := os.Remove(n.Policy.StateDir); err != nil {
		t.Fatal(err)
	}
	if p, err := n.Disable(time.Second); err != nil || p.BootID != "" {
		t.Fatalf("%+v, %v", p, err)
	}
	if *now = now.Add(2 * time.Second); n.Mode() == grant.Disabled {
		t.Error("the longer time of before counts")
	}
}

func TestDisableWithoutADirectoryHasAHint(t *testing.T) {
	n, _ := pausable(t)
	for _, dir := range []string{n.Policy.StateDir, n.Policy.RunDir} {
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.Disable(0); err == nil || !strings.Contains(err.Error(), `policy.mode = "report"`) ||
		!strings.Contains(err.Error(), n.Policy.RunDir) {
		t.Errorf("the error is %v", err)
	}
	if e, err := n.Enable(); e != (node.Enabled{}) || err != nil {
		t.Errorf("enable: %+v, %v; it was not disabled", e, err)
	}
}

// A disk that becomes read-only keeps its file. Disable and Enable still take effect, for this
// boot.
func TestDisableAndEnableOnAReadOnlyDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to mount: that a pause can be ended on a disk that is read-only is not shown")
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with its mount namespace
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		t.Fatal(err)
	}
	n, now := pausable(t)
	disable := func(long time.Duration) node.Pause {
		t.Helper()
		p, err := n.Disable(long)
		if err != nil || n.Mode() != grant.Disabled {
			t.Fatalf("disable: %+v, %v, and the mode is %s", p, err, n.Mode())
		}
		return p
	}
	disable(0)
	state := n.Policy.StateDir
	if err := errors.Join(unix.Mount(state, state, "", unix.MS_BIND, ""),
		unix.Mount("", state, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	*now = now.Add(-time.Hour) // and its clock is wrong
	if p := disable(time.Minute); p.BootID == "" {
		t.Errorf("it is reported to be in the state directory: %+v", p)
	}
	if got, _ := n.Paused(); got.Until.IsZero() {
		t.Errorf("it was disabled for a minute, and is %+v", got)
	}
	for _, after := range []time.Duration{time.Minute, -time.Minute} {
		if *now = now.Add(after); n.Mode() == grant.Disabled {
			t.Error("the minute is over, and it is disabled")
		}
	}
	disable(time.Minute)
	e, err := n.Enable()
	if !e.Was || !errors.Is(e.For, unix.EROFS) || err != nil || n.Mode() == grant.Disabled {
		t.Errorf("enable: %+v, %v, and the mode is %s", e, err, n.Mode())
	}
	if p, paused := n.Paused(); paused || p != (node.Pause{}) {
		t.Errorf("enabled, it is %+v", p)
	}
	if *now = now.Add(-time.Hour); n.Mode() == grant.Disabled {
		t.Error("the clock is set back, and it is disabled again")
	}
	mark := filepath.Join(n.Policy.RunDir, "disabled.json")
	if err := errors.Join(os.Remove(mark), os.Mkdir(mark, 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Enable(); err == nil || !strings.Contains(err.Error(), state) ||
		!strings.Contains(err.Error(), "; nor until the next boot: ") {
		t.Errorf("without a writable directory: %v", err)
	}
	if err := errors.Join(os.Remove(mark), unix.Unmount(state, unix.MNT_DETACH)); err != nil {
		t.Fatal(err)
	}
	if e, err := n.Enable(); !e.Was || e.For != nil || err != nil || n.Mode() == grant.Disabled {
		t.Errorf("with the disk again: %+v, %v, and the mode is %s", e, err, n.Mode())
	}
}

// The run directory's file counts before the state directory's, so a new file there removes it.
func TestDisableReplacesTheFileOfThisBoot(t *testing.T) {
	n, now := pausable(t)
	if err := os.WriteFile(n.Policy.StateDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Disable(time.Second); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(n.Policy.StateDir); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Disable(0); err != nil {
		t.Fatal(err)
	}
	if *now = now.Add(time.Minute); n.Mode() != grant.Disabled {
		t.Error("it was disabled until enabled, and the earlier time limit counts")
	}
}

// A clock that is set back to before a pause that is over must not switch refusals off again.
func TestAPauseThatIsOverStaysOver(t *testing.T) {
	n, now := pausable(t)
	began := *now
	if _, err := n.Disable(time.Hour); err != nil {
		t.Fatal(err)
	}
	if *now = began.Add(2 * time.Hour); n.Mode() == grant.Disabled {
		t.Error("the hour is over, and it is disabled")
	}
	if *now = began.Add(-24 * time.Hour); n.Mode() == grant.Disabled {
		t.Error("the clock is set back, and it is disabled again")
	}
	if _, err := n.Disable(0); err != nil {
		t.Fatal(err)
	}
	if *now = now.Add(-24 * time.Hour); n.Mode() != grant.Disabled {
		t.Error("it was disabled until enabled, and the clock has ended that")
	}
}

// A pause that a program has found over stays over, whatever the clock does then.
func TestAPauseThatWasFoundOverIsRemoved(t *testing.T) {
	n, now := pausable(t)
	began := *now
	for _, dir := range []string{n.Policy.StateDir, n.Policy.RunDir} {
		*now = began
		if dir == n.Policy.RunDir { // the state directory cannot be written
			if err := errors.Join(os.RemoveAll(n.Policy.StateDir),
				os.WriteFile(n.Policy.StateDir, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := n.Disable(30 * time.Minute); err != nil {
			t.Fatal(err)
		}
		for _, at := range []struct {
			minute int
			want   grant.RulesMode
		}{{10, grant.Disabled}, {40, grant.Enforce}, {20, grant.Enforce}} {
			if *now = began.Add(time.Duration(at.minute) * time.Minute); n.Mode() != at.want {
				t.Errorf("%s: after %d minutes it is %s, want %s", dir, at.minute, n.Mode(), at.want)
			}
		}
		if _, err := os.Lstat(filepath.Join(dir, "disabled.json")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("its file is still in %s: %v", dir, err)
		}
	}
}

// A configuration that is broken meanwhile neither ends a pause nor begins one later.
func TestAPauseStaysWithABrokenConfiguration(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.toml")
	good := "state_dir = \"" + dir + "/state\"\nrun_dir = \"" + dir + "/run\"\n"
	open := func(text string) *node.Node {
		t.Helper()
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		n := node.Open(config, host.Default())
		n.Policy.Audit.File = "" // not this machine's
		return n
	}
	for _, row := range []struct{ disabledBy, then string }{{good, good + "x"}, {good + "x", good}} {
		if _, err := open(row.disabledBy).Disable(0); err != nil {
			t.Fatal(err)
		}
		if n := open(row.then); n.Mode() != grant.Disabled {
			t.Errorf("disabled with %q, and with %q it is %s", row.disabledBy, row.then, n.Mode())
		}
		if e, err := open(good).Enable(); !e.Was || err != nil {
			t.Errorf("enable: %+v, %v", e, err)
		}
		if n := open(good + "x"); n.Mode() != grant.Enforce {
			t.Errorf("it is enabled, and with a broken configuration it is %s", n.Mode())
		}
	}
}

// A pause that was made while the configuration did not name the directories ends with the next
// `gpuledger enable`.
func TestEnableEndsAPauseInTheDefaultDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to mount: that enable clears the default directories is not shown")
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with its mount namespace
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/etc", "/var/lib", "/run", "/var/log"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	open := func(text string) *node.Node {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(policy.DefaultPath), 0o700),
			os.WriteFile(policy.DefaultPath, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		return node.Open(policy.DefaultPath, host.Default())
	}
	const good, broken = "state_dir = \"/var/lib/gl\"\nrun_dir = \"/run/gl\"\n", "state_dir = /var/lib/gl\n"
	if _, err := open(broken).Disable(0); err != nil {
		t.Fatal(err)
	}
	if n := open(good); n.Mode() != grant.Enforce {
		t.Errorf("with the configuration corrected it is %s", n.Mode())
	}
	if _, err := open(good).Enable(); err != nil {
		t.Fatal(err)
	}
	if n := open(broken); n.Mode() != grant.Enforce {
		t.Errorf("it is enabled, and with the directory unknown again it is %s", n.Mode())
	}
}
