package grant

import (
	"slices"
	"strconv"
	"time"
)

// Grant is one entry of the ledger: its owner, GPUs, bytes on each GPU, percent of compute, and
// mode.
type Grant struct {
	ID       ID
	Owner    Owner
	Secret   string // SecretHash of its secret; empty for a pod's grant
	Label    string // free text from the caller that made the grant
	App      string // the application that it serves, which spread placement keeps apart; "": not known
	Mode     Mode
	Strength Strength
	GPUs     []Share // sorted by index, without duplicates
	Compute  int     // percent of each GPU, 1 to 100; 0 is neither a share nor a limit
	Source   string  // what entered it: "cli", "adopted", ...
	Created  time.Time
	Expires  time.Time // zero: never
	Draining bool      // released while bound: it counts until its container has ended
	Over     bool      // its time was over once, whatever the clock says since
	For      []Tie     // of the containers that have its secret, those that may use it; none: all of them
	// User is the uid of the user of the node to whom it belongs; 0: to nobody but root. It decides
	// about quotas and listings. Which container may use the grant is decided by Owner.
	User uint32
	// the least strength that must hold its containers to it, beside the policy's; "": any
	MinimumStrength Strength

	// what holds the containers to Compute, set where listings show the grant; the ledger does not
	// store it
	ComputeStrength Strength

	Bindings []Binding // only live and unknown ones; they are in the run directory and end with the boot
}

// Share is a grant's part of one GPU.
type Share struct {
	UUID  string `json:"uuid"`
	Index int    `json:"index"` // at the time of the grant; the UUID identifies the GPU
	// bytes; an exclusive grant has all of the GPU's, in mode mig all of the MIG device's
	Memory Bytes `json:"memory"`

	Profile string `json:"profile,omitzero"` // of a MIG device; Index is then that of its GPU
}

// Label returns a share as listings print it: "0:4GiB", for a MIG device "0/1g.10gb:9856MiB".
func (s Share) Label() string {
	if s.Profile != "" {
		return strconv.Itoa(s.Index) + "/" + s.Profile + ":" + s.Memory.String()
	}
	return strconv.Itoa(s.Index) + ":" + s.Memory.String()
}

// Groups returns what the grant is a part of, and spread placement keeps apart: the application,
// and the pod or the claim.
func (g Grant) Groups() []string { return GroupsOf(g.App, g.Owner) }

// GroupsOf returns the groups of a grant for an application and an owner.
func GroupsOf(app string, owner Owner) (groups []string) {
	if group := owner.Group(); group != "" {
		groups = append(groups, group)
	}
	if app != "" {
		groups = append(groups, "app:"+app)
	}
	return groups
}

// Memory returns the sum over the grant's GPUs.
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

// Begin dates a new grant. It lasts for a time, or without an end if that is zero.
func (g *Grant) Begin(now time.Time, lasts time.Duration) {
	g.Created = now.UTC().Truncate(time.Millisecond)
	if lasts > 0 {
		g.Expires = g.Created.Add(lasts)
	}
}

// Expired reports whether the grant has expired at now.
func (g Grant) Expired(now time.Time) bool {
	return g.Over || !g.Expires.IsZero() && !now.Before(g.Expires)
}

// Live reports whether the grant counts against its GPUs. An expired or released grant, or one that
// its container's create entered, counts only until its last container has ended.
func (g Grant) Live(now time.Time) bool {
	return len(g.Bindings) > 0 || !g.Draining && !g.Expired(now) && !g.isContainers()
}

// Orphaned reports whether a grant that a container's create entered has lost that container. No
// one could release such a grant, so it ends then.
func (g Grant) Orphaned() bool { return g.isContainers() && len(g.Bindings) == 0 }

// CouldReturn reports whether the grant does not count at now and could count again: its container
// has ended, and another one of that name may start. What a placement takes for free has to stay
// free, so such a grant is removed first.
func (g Grant) CouldReturn(now time.Time) bool {
	return len(g.Bindings) == 0 && (g.isContainers() || g.Draining || !g.Over && g.Expired(now))
}

func (g Grant) isContainers() bool { return g.Source == Adopted || g.Source == Asked }

// Sources of grants. A container's create enters the first two.
const (
	Adopted = "adopted" // from a scheduler's annotations of the container
	Asked   = "asked"   // by what the container asked for (Policy.Asks), or by `gpuledger run`
	ByUser  = "user"    // a user of the node asked gpuledgerd for it
)

// ByContainer reports whether a container has asked for the grant. `gpuledger run` enters its
// grants as asked for, too, so that they end with their program.
func (g Grant) ByContainer() bool {
	return g.Source == Asked && (len(g.Bindings) == 0 || g.Bindings[0].Container != ProgramName(g.ID))
}

// ProgramName stands for a container's name in the binding of a program, which is in none.
func ProgramName(id ID) string { return "gpuledger-" + string(id) }

// State is a grant's state as listings print it.
type State string

// The states of a grant.
const (
	Free     State = "free"     // no container uses it
	Bound    State = "bound"    // a container uses it
	Draining State = "draining" // released or expired, and its container still exists
	// bound in another pid namespace, where its state cannot be read; it is never free
	Unknown State = "unknown"
)

// State returns the grant's state, from its bindings and its expiry.
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

// Binding is the record that one container uses a grant. With it the kernel's data alone show
// whether the container still exists.
type Binding struct {
	Grant       ID        `json:"grant"`
	RuntimeRoot string    `json:"runtime_root"` // the real runtime's --root
	Container   string    `json:"container"`    // its id in that root
	Bundle      string    `json:"bundle"`
	Creator     Process   `json:"creator"` // the wrapper, which becomes the real runtime by exec
	PIDNS       uint64    `json:"pid_namespace"`
	TimeNS      uint64    `json:"time_namespace,omitzero"` // 0 on kernels without them
	BootID      string    `json:"boot_id"`
	Created     time.Time `json:"created"`
	// what holds this container to the grant; absent in records of older versions
	Strength Strength `json:"strength,omitzero"`
	// why Strength is less than the grant's listed strength; "" if it is not
	Weaker string `json:"weaker,omitzero"`
	// the identity that the engine proved; only for people and metrics
	Pod Identity `json:"pod,omitzero"`
	// Cgroups are where its processes may be, from the root of each hierarchy. Every process in one
	// of them has the GPUs while it is there, even if the runtime no longer knows the container.
	Cgroups []string `json:"cgroups,omitzero"`
	// Occupies are all cgroups that may become its own, whether or not they could be read, and the
	// names of its systemd unit. No other container is created in one of them, nor below one.
	Occupies []string `json:"occupies,omitzero"`
	// Unplaced says that the container's spec names no cgroup, so that Occupies are what runtimes
	// use then. Containers may be created below those.
	Unplaced bool `json:"unplaced,omitzero"`
	// Driven says that the driver limits the container's cgroup and gpuledgerd maintains the limit.
	Driven bool `json:"driven,omitzero"`
	// Throttled says that its launches pass the gate of the grant's share of compute.
	Throttled bool `json:"throttled,omitzero"`
	// Reserved says that the container's create has not come yet. Until then the process Creator
	// holds the grant for it. The first create of the container takes it over, under any root.
	Reserved bool `json:"reserved,omitzero"`

	Life Life `json:"-"` // as found when it was read
	PID  int  `json:"-"` // the pid of the container's init process while it runs, else 0
	// the runtime no longer knows the container; processes that may be in its cgroups keep the
	// binding from being dead
	Left bool `json:"-"`
}

// Process identifies a process by its pid and start time, so that a reused pid is not mistaken for
// it.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // field 22 of /proc/PID/stat: clock ticks since the boot
}

// String returns PID/START, for keys and logs.
func (p Process) String() string { return strconv.Itoa(p.PID) + "/" + strconv.FormatUint(p.Start, 10) }

// Life says whether a binding's container exists.
type Life int

// The values of Life. A binding is dead only if the kernel's data show it.
const (
	LifeUnknown Life = iota
	Alive
	Dead
)
