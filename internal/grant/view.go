package grant

import (
	"slices"
	"time"
)

// View is the part of the ledger that a decision needs, as values that do not change. A placement
// needs all grants; an admission needs only those that the container names or owns.
type View struct {
	Now     time.Time
	Grants  []Grant
	Damaged []Damage
	// by UUID of a GPU or MIG device: memory that the watch found in use without a grant, or beyond
	// one; it counts as taken
	Outside map[string]Bytes
	Excess  []Excess // what of it is beyond grants
	// by UUID: GPUs and MIG devices that a container without a grant for them has; they cannot be
	// granted as a whole meanwhile
	Held map[string]bool
	// the whole ledger, for a container whose create could enter a grant; otherwise nil
	Whole *View
	Fresh ID // the id of a grant that the create enters now
	// the grant, one of Grants, that this create has entered already because the container asked
	// for it: another entry point was first
	Asked ID
	// daemons of the grants in mode mps; a daemon that is missing does not run
	MPS []MPSDaemon
	// why the node's state is unknown; with any of them, nothing that needs a GPU is admitted
	Problems []Problem
}

// Excess is what the containers of a grant use of one of its GPUs beyond the grant.
type Excess struct {
	Grant ID
	GPU   string // UUID
	Bytes Bytes
}

// ExcessOf returns what the containers of a grant use of a GPU beyond the grant.
func (v View) ExcessOf(id ID, gpu string) (sum Bytes) {
	for _, e := range v.Excess {
		if e.Grant == id && e.GPU == gpu {
			sum += e.Bytes
		}
	}
	return sum
}

// AnyCouldReturn reports whether a grant that does not count in the view could count again.
func (v View) AnyCouldReturn() bool {
	return slices.ContainsFunc(v.Grants, func(g Grant) bool { return g.CouldReturn(v.Now) })
}

// Damage is an entry of the ledger that cannot be read. It stays in place as evidence. Its GPUs
// take no new grants until it is repaired or released by force.
type Damage struct {
	ID   ID
	Path string
	GPUs []string // UUIDs from the ledger's index; none: unknown, so no GPU takes new grants
	Err  string
}

// Problem is a reason, outside the container, for which no GPU can be given.
type Problem struct {
	Code    Code
	Message string
	Hint    string
}

// Refusal is the problem as an error.
func (p Problem) Refusal() *Refusal { return &Refusal{Code: p.Code, Message: p.Message, Hint: p.Hint} }
