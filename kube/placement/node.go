package placement

import (
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Node is a node with what is left of its GPUs.
type Node struct {
	Name   string
	GPUs   []GPU
	Mode   grant.Mode // of demands that name none; "": Limit
	Policy Policy     // of wishes that name none; "": Binpack
	Closed string     // why it takes no grant at all; "": it does
}

// GPU is a GPU with what is left of it. Its amounts are for new grants.
type GPU struct {
	UUID    string
	Index   int
	Product string
	Memory  grant.Bytes  // all that it has
	Space   grant.Bytes  // what could be granted if nothing was granted or used; 0: Memory
	Free    grant.Bytes  // what can be granted
	Compute int          // percent that can be granted
	Modes   []grant.Mode // those that a grant may have
	Unkept  bool         // in mode limit it gives no share of compute
	Mode    grant.Mode   // of the grants that are on it; "": it has none
	Served  int          // in mode mps: over how many GPUs its grants are
	Closed  string       // why it takes no new grant; "": it does
	Outside grant.Bytes  // used without a grant
	Held    bool         // a container has it open that has no grant of it
	// Apps has the number of replicas on this GPU, by the application.
	Apps map[string]int
}

// Choice is what one container gets.
type Choice struct {
	Container string
	GPUs      []int       // indexes in Node.GPUs
	Memory    grant.Bytes // on each of them; 0 in mode exclusive
	Compute   int
	Mode      grant.Mode
	Init      bool
}

// space returns what the parts of a GPU are parts of.
func (g *GPU) space() grant.Bytes {
	if g.Space > 0 {
		return g.Space
	}
	return g.Memory
}

// modeOf returns the mode of a demand on a node.
func (n *Node) modeOf(d *Demand) grant.Mode {
	switch {
	case d.Mode != "":
		return d.Mode
	case n.Mode != "":
		return n.Mode
	}
	return grant.Limit
}

// policyOf returns the policy of a wish on a node.
func (n *Node) policyOf(w *Wish) Policy {
	switch {
	case w.Policy != "":
		return w.Policy
	case n.Policy != "":
		return n.Policy
	}
	return Binpack
}

// count returns how many GPUs a demand is for.
func (d *Demand) count() int { return max(d.GPUs, 1) }

// all reports whether a demand is for all memory of each GPU, as a share.
func (d *Demand) all() bool { return d.Memory == 0 && d.Part == 0 }

// amount returns how much of a GPU's memory a demand takes: whole MiB, as the ledger grants it. In
// mode exclusive it is 0, because such a grant has no amount.
func (d *Demand) amount(g *GPU, mode grant.Mode) grant.Bytes {
	switch {
	case mode == grant.Exclusive:
		return 0
	case d.Memory > 0:
		return (d.Memory + grant.MiB - 1) / grant.MiB * grant.MiB
	case d.Part > 0:
		return g.space() * grant.Bytes(d.Part) / 1000 / grant.MiB * grant.MiB
	}
	return g.Free / grant.MiB * grant.MiB
}

// misfit is why a GPU does not serve a demand, the farthest from fitting first.
type misfit int

const (
	fits misfit = iota
	isClosed
	otherProduct
	tooSmall
	modeForbidden
	computeForbidden
	otherMode
	isServed
	isUsed
	noMemory
	noCompute
)

// misfitOf says why a GPU does not serve a demand, whatever else its pod has on it.
func (s *Search) misfitOf(d *Demand, mode grant.Mode, g *GPU) misfit {
	whole := mode == grant.Exclusive
	amount := d.amount(g, mode)
	switch {
	case g.Closed != "":
		return isClosed
	case !s.takes(g.Product):
		return otherProduct
	case g.Memory < s.wish.AtLeast:
		return tooSmall
	case !slices.Contains(g.Modes, mode) || whole && (d.Memory > 0 || d.Part > 0):
		return modeForbidden
	case d.Compute > 0 && mode == grant.Limit && g.Unkept:
		return computeForbidden
	case g.Mode != "" && (whole || d.all()):
		return isUsed
	case g.Mode != "" && g.Mode != mode:
		return otherMode
	case whole && (g.Outside > 0 || g.Held):
		return isUsed
	case mode == grant.MPS && g.Mode != "" && (d.count() > 1 || g.Served > 1):
		return isServed
	case amount > g.Free || !whole && amount == 0:
		return noMemory
	case d.Compute > g.Compute:
		return noCompute
	}
	return fits
}
