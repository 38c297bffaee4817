package node_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// pausable is a node whose state directory may be one or not, and a clock.
func pausable(t *testing.T) (n *node.Node, now *time.Time) {
	dir, clock := t.TempDir(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h := host.Default()
	h.Now = func() time.Time { return clock }
	p := grant.Policy{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run")}
	return &node.Node{Policy: p, Host: h, Ledger: ledger.Open(ledger.Options{State: p.StateDir, Run: p.RunDir, Host: h})}, &clock
}

// Breaking the glass needs neither the disk that is broken nor what lies on it, and what was done without them is over with the boot.
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
		t.Fatal("it is said to be disabled, and is not")
	}
	file := filepath.Join(n.Policy.RunDir, "disabled.json")
	if *now = now.Add(time.Minute); n.Mode() == grant.Disabled {
		t.Error("its time is over and it is disabled")
	}
	*now = now.Add(-time.Minute)

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(file, strings.Replace(string(text), p.BootID, "00000000-0000-0000-0000-000000000000", 1))
	if n.Mode() == grant.Disabled {
		t.Error("the file of another boot disables this one")
	}
	write(file, string(text))
	if err := os.Chown(file, 65534, 65534); err != nil {
		t.Skip("misses root, to give a file away: ", err)
	}
	if n.Mode() == grant.Disabled {
		t.Error("somebody else's file disables the node")
	}
	if err := os.Chown(file, 0, 0); err != nil {
		t.Fatal(err)
	}
	if was, err := n.Enable(); !was || err != nil || n.Mode() == grant.Disabled {
		t.Errorf("enable: %v, %v, and the mode is %s", was, err, n.Mode())
	}

	// With the state directory again, that is where it stands, and nothing of before counts beside it.
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

func TestDisableWithNoDirectoryAtAllSaysWhatElseToDo(t *testing.T) {
	n, _ := pausable(t)
	for _, dir := range []string{n.Policy.StateDir, n.Policy.RunDir} {
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.Disable(0); err == nil || !strings.Contains(err.Error(), `policy.mode = "report"`) || !strings.Contains(err.Error(), n.Policy.RunDir) {
		t.Errorf("it says %v", err)
	}
	if was, err := n.Enable(); was || err != nil {
		t.Errorf("enable: %v, %v; it was not disabled", was, err)
	}
}
