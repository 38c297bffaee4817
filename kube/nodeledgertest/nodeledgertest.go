// Package nodeledgertest gives tests a simulated node with a real ledger.
package nodeledgertest

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// SimulatedNode is a simulated node.
type SimulatedNode struct {
	nodeledger.Ledger
	T   testing.TB
	Dir string
}

// New makes a node with this number of GPUs, each with this much memory. more is TOML for its
// configuration.
func New(t testing.TB, gpus int, memory grant.Bytes, more string) *SimulatedNode {
	t.Helper()
	n := &SimulatedNode{T: t, Dir: t.TempDir()}
	n.Config = filepath.Join(n.Dir, "config.toml")
	n.Open = func() *node.Node { return node.Open(n.Config, host.Default()) }
	n.must(os.WriteFile(n.Config, fmt.Appendf(nil,
		"state_dir = %q\nrun_dir = %q\n[inventory]\nsource = \"simulated\"\nfile = %q\n[cdi]\ndir = "+
			"%q\n[audit]\nfile = \"\"\n%s",
		n.Dir+"/state", n.Dir+"/run", n.Dir+"/gpus.json", n.Dir+"/cdi", more), 0o600))
	n.SetGPUs(gpus, memory, func([]simulated.GPUDescription) {})
	return n
}

// SetGPUs replaces the inventory; change may edit the simulated GPUs first.
func (n *SimulatedNode) SetGPUs(gpus int, memory grant.Bytes, change func([]simulated.GPUDescription)) {
	n.T.Helper()
	d, err := simulated.Describe(gpus, memory, "", nil)
	n.must(err)
	change(d.GPUs)
	inv, err := simulated.Scan(d, host.Default(), "/")
	n.must(err)
	n.SetInventory(inv)
}

// SetInventory replaces the inventory.
func (n *SimulatedNode) SetInventory(inv grant.Inventory) {
	n.T.Helper()
	n.must(os.MkdirAll(n.Dir+"/state", 0o700))
	n.must(gpu.Write(gpu.Path(n.Dir+"/state"), inv))
}

// HasMPS adds the programs of MPS to the node's driver.
func (n *SimulatedNode) HasMPS() {
	n.T.Helper()
	inv, _ := n.Open().Inventory()
	inv.Driver.Files = nil
	for _, name := range []string{grant.MPSControl, grant.MPSServer} {
		inv.Driver.Files = append(inv.Driver.Files, grant.DriverFile{Kind: grant.FileBinary,
			Path: "/usr/bin/" + name, Target: "/usr/bin/" + name})
	}
	n.SetInventory(inv)
}

// Daemon makes this process look like the node's gpuledgerd.
func (n *SimulatedNode) Daemon() {
	n.T.Helper()
	n.must(os.MkdirAll(n.Dir+"/run", 0o700))
	lock, err := os.Create(n.Dir + "/run/gpuledgerd.lock")
	n.must(err)
	n.T.Cleanup(func() { lock.Close() })
	_, err = fmt.Fprintln(lock, os.Getpid())
	n.must(err)
	n.must(syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
}

// Grant enters a grant that is not the agent's.
func (n *SimulatedNode) Grant(ask admission.Ask) grant.Grant {
	n.T.Helper()
	if ask.Owner == "" {
		ask.Owner = grant.Bearer
	}
	g, _, err := grants.Enter(n.Open(), ask)
	n.must(err)
	return g
}

// Grants returns the grants in the ledger.
func (n *SimulatedNode) Grants() []grant.Grant {
	n.T.Helper()
	p, err := n.Read()
	n.must(err)
	return p.Grants
}

// UUID returns the UUID of the GPU with this index.
func (n *SimulatedNode) UUID(index int) string {
	n.T.Helper()
	p, err := n.Read()
	n.must(err)
	return p.Inventory.GPUs[index].UUID
}

// Hold makes the watch find that a container, this process, has a GPU or MIG device open without a
// grant of it.
func (n *SimulatedNode) Hold(uuid string) {
	n.T.Helper()
	self, err := host.Default().Self()
	n.must(err)
	n.must(n.Open().Ledger.SetFound(ledger.Found{Held: map[string][]grant.Process{uuid: {self}}}))
}

// Use binds a grant to a container that lives as long as this process. end removes the binding.
func (n *SimulatedNode) Use(id grant.ID, who grant.Identity) (end func()) {
	n.T.Helper()
	self, err := host.Default().Self()
	n.must(err)
	root, container := n.Dir+"/runtime", "container-of-"+string(id)
	n.must(n.Open().Ledger.Update(func(tx *ledger.Tx) error {
		return tx.Bind(grant.Binding{Grant: id, RuntimeRoot: root, Container: container, Bundle: n.Dir,
			Creator: self, Pod: who})
	}))
	return func() {
		n.must(n.Open().Ledger.Update(func(tx *ledger.Tx) error { return tx.Unbind(root, container) }))
	}
}

func (n *SimulatedNode) must(err error) {
	n.T.Helper()
	if err != nil {
		n.T.Fatal(err)
	}
}
