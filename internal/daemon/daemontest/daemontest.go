// Package daemontest has a node for the tests of the daemon's packages: a real ledger, and
// containers that are one process each.
package daemontest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// GPU is the UUID of the GPU that grants are for.
const GPU = "GPU-ec6f3a93-0db3-4679-0464-05f9944454e7"

// TestNode is a node with a ledger, on this machine's /proc.
type TestNode struct {
	*node.Node
	Root string // where the runtime of the containers keeps its state
	t    *testing.T
}

// NewNode makes a node with an empty ledger.
func NewNode(t *testing.T) *TestNode {
	dir := t.TempDir()
	p := grant.Policy{StateDir: dir + "/state", RunDir: dir + "/run"}
	h := host.Default()
	l := ledger.Open(ledger.Options{State: p.StateDir, Run: p.RunDir, Host: h})
	return &TestNode{Node: &node.Node{Host: h, Policy: p, Ledger: l}, Root: dir + "/runtime", t: t}
}

// Grant enters a grant of 1 GiB, with an id made of the letter.
func (n *TestNode) Grant(letter byte) grant.ID {
	n.t.Helper()
	g := grant.Grant{ID: grant.NewID([16]byte{letter}), Owner: grant.Owner(fmt.Sprintf("pod:u-%d/c", letter)),
		Mode: grant.Limit, Strength: admission.StrengthOf(grant.Limit),
		Created: time.Now().UTC().Truncate(time.Millisecond),
		GPUs:    []grant.Share{{UUID: GPU, Memory: grant.GiB}}}
	Must(n.t, n.Ledger.Update(func(tx *ledger.Tx) error { return tx.Put(g) }))
	return g.ID
}

// Start starts a process as a container of the name, and binds it to a grant.
func (n *TestNode) Start(id grant.ID, name string) *exec.Cmd {
	n.t.Helper()
	cmd := exec.Command("sleep", "1000")
	Must(n.t, cmd.Start())
	n.t.Cleanup(func() { End(cmd) })
	p, _, err := n.Host.Process(cmd.Process.Pid)
	Must(n.t, err)
	// crun's
	status := fmt.Sprintf(`{"pid":%d,"process-start-time":%d,"cgroup-path":"/gpuledger-no-such-cgroup"}`,
		p.PID, p.Start)
	Must(n.t, os.MkdirAll(filepath.Join(n.Root, name), 0o700),
		os.WriteFile(filepath.Join(n.Root, name, "status"), []byte(status), 0o600))
	gone := exec.Command("true") // the creator
	Must(n.t, gone.Run())
	creator := grant.Process{PID: gone.Process.Pid, Start: 1}
	Must(n.t, n.Ledger.Update(func(tx *ledger.Tx) error {
		return tx.Bind(grant.Binding{Grant: id, RuntimeRoot: n.Root, Container: name, Creator: creator})
	}))
	return cmd
}

// End ends the process of a container.
func End(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// Must ends a test at an error.
func Must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// ShortDir is a directory for sockets, whose names have at most 107 bytes (unix(7)). Those of other
// temporary directories may be longer.
func ShortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "s-")
	Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
