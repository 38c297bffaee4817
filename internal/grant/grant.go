package grant

import (
	"slices"
	"strconv"
	"time"
)

// Grant is one entry of the ledger: who may use which GPUs, how many bytes on each, how much
// compute, in which mode.
type Grant struct {
	ID       ID
	Owner    Owner
	Secret   string // SecretHash of its secret; empty for a pod's grant
	Label    string // free text of whoever granted it
	Mode     Mode
	Strength Strength
	GPUs     []Share // by index, none twice
	Compute  int     // percent of each GPU, 1 to 100; 0 is no share of its own and no limit
	Source   string  // who entered it: "cli", "adopted", ...
	Created  time.Time
	Expires  time.Time // zero: never
	Draining bool      // released while bound: it counts until its container is gone
	For      []Tie     // who may use it, of those who have its secret; none: all of them

	// what holds the containers to Compute, where people are told of the grant; the ledger has none
	ComputeStrength Strength

	Bindings []Binding // live and unknown ones only; they lie in the run directory and die with the boot
}

// Share is a grant's part of one GPU.
type Share struct {
	UUID  string `json:"uuid"`
	Index int    `json:"index"` // when it was granted; the UUID is what counts
	// for an exclusive grant all of the GPU's, in mode mig all of the MIG device's
	Memory Bytes `json:"memory"`

	Profile string `json:"profile,omitzero"` // of a MIG device: then the index is that of its GPU
}

// Label is a share as listings write it: "0:4GiB", of a MIG device "0/1g.10gb:9856MiB".
func (s Share) Label() string {
	if s.Profile != "" {
		return strconv.Itoa(s.Index) + "/" + s.Profile + ":" + s.Memory.String()
	}
	return strconv.Itoa(s.Index) + ":" + s.Memory.String()
}

// Memory is the sum over the grant's GPUs.
func (g Grant) Memory() Bytes {
	var sum Bytes
	for _, s := range g.GPUs {
		sum += s.Memory
	}
	return sum
}

// Has reports whether the grant covers the GPU.
func (g Grant) Has(uuid string) bool {
	return slices.ContainsFunc(g.GPUs, func(s Share) bool { return s.UUID == uuid })
}

// Expired reports whether the grant's time is over.
func (g Grant) Expired(now time.Time) bool { return !g.Expires.IsZero() && !now.Before(g.Expires) }

// Live reports whether the grant counts against its GPUs: one that is expired, released or adopted
// counts only until its last container is gone.
func (g Grant) Live(now time.Time) bool {
	return len(g.Bindings) > 0 || !g.Draining && !g.Expired(now) && g.Source != Adopted
}

// Orphaned reports whether a grant that a container adopted is without that container. Nobody could
// release it, so it is over then.
func (g Grant) Orphaned() bool { return g.Source == Adopted && len(g.Bindings) == 0 }

// Adopted is the source of a grant that a container's create entered, from what a scheduler wrote
// about the container.
const Adopted = "adopted"

// State is what a reader of the ledger is shown of a grant.
type State string

// The states of a grant.
const (
	Free     State = "free"     // no container uses it
	Bound    State = "bound"    // a container uses it
	Draining State = "draining" // released or expired, its container still there
	// bound in another pid namespace: it can't be told from here, so it is never free
	Unknown State = "unknown"
)

// State derives the grant's state from its bindings.
func (g Grant) State(now time.Time) State {
	switch {
	case slices.ContainsFunc(g.Bindings, func(b Binding) bool { return b.Life == LifeUnknown }):
		return Unknown
	case len(g.Bindings) > 0 && (g.Draining || g.Expired(now)):
		return Draining
	case len(g.Bindings) > 0:
		return Bound
	}
	return Free
}

// Binding is a grant in use by one container. It says enough to tell, from the kernel alone,
// whether that is still so.
type Binding struct {
	Grant       ID        `json:"grant"`
	RuntimeRoot string    `json:"runtime_root"` // the real runtime's --root
	Container   string    `json:"container"`    // the id there
	Bundle      string    `json:"bundle"`
	Creator     Process   `json:"creator"` // the wrapper, which becomes the real runtime by exec
	PIDNS       uint64    `json:"pid_namespace"`
	TimeNS      uint64    `json:"time_namespace,omitzero"` // 0 on kernels without them
	BootID      string    `json:"boot_id"`
	Created     time.Time `json:"created"`
	// what holds this container to the grant; none in records of older versions
	Strength Strength `json:"strength,omitzero"`
	// why that is less than people were told of the grant; "" where it is not
	Weaker string `json:"weaker,omitzero"`
	// who the engine vouched that the container is; only for people and metrics
	Pod Identity `json:"pod,omitzero"`
	// Cgroups are where its processes may be, from the root of each hierarchy. Whoever shares one
	// has the GPUs for as long as it is there, whatever the runtime still knows of the container.
	Cgroups []string `json:"cgroups,omitzero"`
	// Occupies are all cgroups that may become its own, whether they could be looked at or not. No
	// other container is created in one of them, or below.
	Occupies []string `json:"occupies,omitzero"`
	// Driven: the driver limits the container's cgroup, and gpuledgerd keeps it so.
	Driven bool `json:"driven,omitzero"`
	// Throttled: its launches pass the gate of the grant's share of compute.
	Throttled bool `json:"throttled,omitzero"`
	// Reserved: the container's own create has yet to come, and Creator is the process that holds
	// the grant for it until then. The first create of the container takes it over, under whichever
	// root.
	Reserved bool `json:"reserved,omitzero"`

	Life Life `json:"-"` // as its reader found it
	PID  int  `json:"-"` // the container's init when it runs, else 0
	// the runtime has forgotten the container: it is not dead because of who may be in its cgroups
	Left bool `json:"-"`
}

// Process is a process that no reused pid is mistaken for.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // field 22 of /proc/PID/stat: clock ticks since the boot
}

// String is for keys and logs.
func (p Process) String() string { return strconv.Itoa(p.PID) + "/" + strconv.FormatUint(p.Start, 10) }

// Life is whether a binding's container is there.
type Life int

// A binding is dead only where the kernel says so.
const (
	LifeUnknown Life = iota
	Alive
	Dead
)
