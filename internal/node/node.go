// Package node decides about containers on this node. Every entry point (runtime wrapper, hook,
// CDI, NRI, command line) calls it, so all give the same verdict. A create has four steps; each can
// refuse. readFacts reads the spec and the node (facts.go). planned takes the verdict of
// admission.Decide and edits the spec (plan.go). commit locks the ledger, decides again and binds
// (bind.go). withOwnCgroup checks that nothing else has the container's cgroup or unit (cgroup.go).
package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/policy"
	"github.com/gpuledger/gpuledger/internal/request"
)

// Node is this machine with its policy, its inventory and its ledger.
type Node struct {
	Host   host.Host
	Policy grant.Policy
	// why the configuration could not be read; the defaults are in force then, but for the runtime
	// and the directories if these can be read, and no engine is trusted
	Broken error
	Ledger *ledger.Ledger

	config string // the file that was read
	kept   *gpu.Kept
}

// Keep makes the node remember the inventory, and what does not change of the ledger, for a program
// that reads them many times.
func (n *Node) Keep() {
	n.kept = &gpu.Kept{}
	n.Ledger.Containers.Keep()
}

// Open reads the configuration at path. It always gives a node: one with a broken configuration
// still lets containers start that reach no GPU.
func Open(path string, h host.Host) *Node {
	p, err := policy.Load(path)
	if err != nil {
		p.Engine = grant.NoEngine
	}
	return &Node{config: path, Host: h, Policy: p, Broken: err,
		Ledger: ledger.Open(ledger.Options{State: p.StateDir, Run: p.RunDir, Host: h})}
}

// Inventory returns the snapshot, and what keeps it from being used. With a problem it may still
// hold what was read.
func (n *Node) Inventory() (grant.Inventory, *grant.Problem) {
	load := gpu.Load
	if n.kept != nil {
		load = n.kept.Load
	}
	inv, problem := load(gpu.Path(n.Policy.StateDir), n.Host, n.Policy.Inventory.Source)
	inv.Shim = n.Shim()
	inv.Limiter = limiter(n, inv)
	return inv, problem
}

// Daemon returns the pid of the gpuledgerd that runs here, 0 if none does.
func (n *Node) Daemon() int { return n.Host.Holder(filepath.Join(n.Policy.RunDir, "gpuledgerd.lock")) }

// InventoryStamp returns what differs between two states of the snapshot's file.
func (n *Node) InventoryStamp() host.Stamp { return host.StampOf(gpu.Path(n.Policy.StateDir)) }

// finder returns what tells GPU devices from others here. On a simulated node the snapshot does,
// because the system knows none.
func (n *Node) finder(inventory func() (grant.Inventory, *grant.Problem)) request.NodeFacts {
	program, _ := os.Executable() // unknown, it is guarded less
	f := request.NodeFacts{Host: n.Host, Policy: n.Policy, Majors: n.Host.NVIDIAMajors, DRM: n.Host.DRM,
		Taken: n.Host.CharacterMajors, Config: n.config, Program: program}
	f.Cards = func() bool { return n.Host.HasNVIDIA() || known(n, inventory) }
	if n.Policy.Inventory.Source != grant.Simulated {
		return f
	}
	f.Majors = func() (map[string]int, error) {
		majors, err := n.Host.NVIDIAMajors()
		inv, _ := inventory() // a stale one still tells which majors were simulated
		for name, major := range inv.Majors {
			if err == nil {
				majors[name] = major
			}
		}
		return majors, err
	}
	f.DRM = func() (map[int]bool, error) {
		inv, _ := inventory()
		minors, err := n.Host.DRM() // of the machine that it is simulated on
		for minor := range simulatedDRM(inv) {
			if err == nil {
				minors[minor] = true
			}
		}
		return minors, err
	}
	return f
}

// known reports whether the snapshot has GPUs, of whatever boot it is. One that cannot be read, or
// whose place is not known, could have some.
func known(n *Node, inventory func() (grant.Inventory, *grant.Problem)) bool {
	if n.Broken != nil {
		return true
	}
	inv, problem := inventory()
	if problem == nil || problem.Code != grant.InventoryMissing {
		return len(inv.GPUs) > 0
	}
	_, err := os.Lstat(gpu.Path(n.Policy.StateDir)) // a user without root may not look
	return !errors.Is(err, fs.ErrNotExist)
}

func simulatedDRM(inv grant.Inventory) map[int]bool {
	minors := map[int]bool{}
	for _, g := range inv.GPUs {
		for _, path := range g.Render {
			_, digits, _ := strings.Cut(filepath.Base(path), "renderD")
			if minor, err := strconv.Atoi(digits); err == nil {
				minors[minor] = true
			}
		}
	}
	return minors
}
