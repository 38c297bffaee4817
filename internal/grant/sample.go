package grant

import (
	"strings"
	"time"
)

// Sample is the use of a node's GPUs at one moment, as the driver reports it.
type Sample struct {
	Taken time.Time `json:"taken"`
	GPUs  []Usage   `json:"gpus"` // in the driver's order
}

// Usage is the use of one physical GPU.
type Usage struct {
	UUID  string `json:"uuid"`
	Index int    `json:"index"`
	// Healthy, or why it does not answer; the fields below are then unknown
	Health string `json:"health"`
	Total  Bytes  `json:"total"` // bytes, without what the driver keeps for itself
	Used   Bytes  `json:"used"`  // bytes in use by all processes and the driver's clients
	// percent of the time in which a kernel ran; -1: not reported
	Utilization int `json:"utilization"`
	// what it draws, in milliwatts; 0: not reported
	Power       int         `json:"power_milliwatts,omitzero"`
	Temperature int         `json:"temperature_celsius,omitzero"` // of the GPU, in °C; 0: not reported
	ComputeMode ComputeMode `json:"compute_mode,omitzero"`        // "": not reported
	MIG         []string    `json:"mig,omitempty"`                // UUIDs of its MIG devices
	// errors that the driver has reported since the last sample
	XIDs      []int        `json:"xids,omitempty"`
	Processes []ProcessUse `json:"processes"`
}

// ProcessUse is the use of a GPU, or of a MIG device on it, by one process.
type ProcessUse struct {
	PID        int    `json:"pid"`             // in the node's pid namespace
	Device     string `json:"device,omitzero"` // UUID of the MIG device; "": the GPU itself
	Memory     Bytes  `json:"memory"`
	Unmeasured bool   `json:"unmeasured,omitzero"` // the driver does not report its memory
	Compute    int    `json:"compute"`             // percent; -1: not reported
}

// ComputeMode is the compute mode of a GPU, which an administrator sets with nvidia-smi -c.
type ComputeMode string

// The compute modes of nvmlComputeMode_t.
const (
	ComputeDefault    ComputeMode = "default"
	ComputeExclusive  ComputeMode = "exclusive-process"
	ComputeProhibited ComputeMode = "prohibited"
)

// FindingKind is the kind of a finding.
type FindingKind string

// The kinds of findings, a closed list.
const (
	OverGrant     FindingKind = "over-grant"     // containers of a grant use more than the grant
	OutsideLedger FindingKind = "outside-ledger" // a process uses a GPU without a grant for it
	Unexplained   FindingKind = "unexplained"    // memory in use that belongs to no process
	ModeChanged   FindingKind = "mode-changed"   // the GPU's compute mode does not fit its grants
	LayoutChanged FindingKind = "layout-changed" // MIG devices appeared or disappeared since the inventory
	GPULost       FindingKind = "gpu-lost"       // a GPU does not answer or is gone
	GPUError      FindingKind = "gpu-error"      // the driver reported an XID
	LimitChanged  FindingKind = "limit-changed"  // a memory limit of the driver differs from the ledger

	// HandlerChanged is about an engine, not a GPU: its default handler was gpuledger and is
	// another now.
	HandlerChanged FindingKind = "handler-changed"
)

// FindingKinds lists every kind.
var FindingKinds = []FindingKind{OverGrant, OutsideLedger, Unexplained, ModeChanged, LayoutChanged, GPULost,
	GPUError, LimitChanged, HandlerChanged}

// Finding is a difference between the GPUs and the ledger.
type Finding struct {
	Kind  FindingKind `json:"kind"`
	GPU   string      `json:"gpu"`          // UUID
	MIG   string      `json:"mig,omitzero"` // UUID of the MIG device on it; "": the GPU
	Index int         `json:"index"`        // -1: it has none, or no longer has one
	// of an over-grant the bytes beyond the grant, else the bytes in use
	Bytes   Bytes     `json:"bytes"`
	Grant   ID        `json:"grant,omitzero"`
	User    User      `json:"user,omitzero"` // of an over-grant the one that uses most of the grant
	Message string    `json:"message"`
	Since   time.Time `json:"since,omitzero"`
	// Contexts is what the contexts of all processes of the grant may take, of an over-grant.
	Contexts Bytes `json:"-"`
}

// Key identifies the finding: it is the same in every sample. One user's use of several MIG devices
// of a GPU is one finding, or who goes from one to the other would never be stopped. For the same
// reason what all users of a grant use beyond it is one finding, whichever of them uses most.
func (f Finding) Key() string {
	if f.Kind == OverGrant {
		f.User = User{}
	}
	return strings.Join([]string{string(f.Kind), f.GPU, string(f.Grant), f.User.Key()}, "\x00")
}

// User is a container, or a process of the node itself, that uses a GPU.
type User struct {
	Container string   `json:"container,omitzero"` // its id; "": a process of the node
	Engine    Engine   `json:"engine,omitzero"`    // "" if neither its cgroup nor its binding shows it
	Pod       Identity `json:"pod,omitzero"`       // only for people, except the UID from a binding
	// the container's own cgroup, from the hierarchy's root; "" if unknown
	Cgroup    string    `json:"cgroup,omitzero"`
	Command   string    `json:"command,omitzero"` // the command of the first process, as in /proc/PID/comm
	Processes []Process `json:"processes,omitempty"`
	Exempt    bool      `json:"exempt,omitzero"` // the policy lets it use GPUs without a grant
	// OfNodeUser: its cgroup is one of a user of the node, who can give it any name.
	OfNodeUser bool `json:"-"`
}

// IsRootsContainer reports whether the user is a container that no user of the node can have made.
func (u User) IsRootsContainer() bool { return u.Container != "" && !u.OfNodeUser }

// Key identifies the user: it is the same in every sample. A container has its cgroup and id, a
// process of the node its pid and start time.
func (u User) Key() string {
	if u.Container != "" {
		return u.Cgroup + "\x00" + u.Container
	}
	if len(u.Processes) == 0 {
		return ""
	}
	return u.Processes[0].String()
}
