package grant

import "time"

// View is what the ledger shows to a decision: the grants that the decision needs, and nothing that
// could change under it. A placement needs all of them; an admission only those that the container
// names or owns.
type View struct {
	Now     time.Time
	Grants  []Grant
	Damaged []Damage
	// by UUID: memory that the watch found in use by nobody's grant; it counts as taken
	Outside map[string]Bytes
	// by UUID: GPUs that a container has which has no grant of them; nobody has one exclusively
	// meanwhile
	Held map[string]bool
	// all of the ledger, for a container that could adopt a grant; nil for any other
	Whole *View
	Fresh ID // what a grant that is adopted now would be called
	// daemons of the grants here that are in mode mps; one that is not there does not run
	MPS []MPSDaemon
	// what keeps the node from telling; with any of them nothing that needs a GPU is admitted
	Problems []Problem
}

// Damage is an entry of the ledger that cannot be read. It is left where it is, as evidence; its
// GPUs take no new grants until it is repaired or released by force.
type Damage struct {
	ID   ID
	Path string
	GPUs []string // UUIDs from the ledger's index; none means unknown, and closes every GPU
	Err  string
}

// Problem is a reason, outside the container, for which no GPU can be given.
type Problem struct {
	Code    Code
	Message string
	Hint    string
}
