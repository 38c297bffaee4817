package grant

import "time"

// Sample is what is used of a node's GPUs at one moment, as the driver tells it.
type Sample struct {
	Taken time.Time `json:"taken"`
	GPUs  []Usage   `json:"gpus"` // in the driver's order
}

// Usage is what is used of one physical GPU.
type Usage struct {
	UUID  string `json:"uuid"`
	Index int    `json:"index"`
	// Healthy; else why it does not answer, and nothing below is known
	Health string `json:"health"`
	Total  Bytes  `json:"total"` // without what the driver keeps for itself
	Used   Bytes  `json:"used"`  // by everybody
	// percent of the time in which something ran; -1: not told
	Utilization int         `json:"utilization"`
	ComputeMode ComputeMode `json:"compute_mode,omitzero"` // "" where it is not told
	MIG         []string    `json:"mig,omitempty"`         // UUIDs of its MIG devices
	// errors that the driver reported since the last sample
	XIDs      []int        `json:"xids,omitempty"`
	Processes []ProcessUse `json:"processes"`
}

// ProcessUse is what one process uses of a GPU, or of one MIG device on it.
type ProcessUse struct {
	PID        int    `json:"pid"`             // on the node
	Device     string `json:"device,omitzero"` // the MIG device; "" is the GPU itself
	Memory     Bytes  `json:"memory"`
	Unmeasured bool   `json:"unmeasured,omitzero"` // the driver does not tell its memory
	Compute    int    `json:"compute"`             // percent; -1: not told
}

// ComputeMode is who may compute on a GPU, as an administrator sets it with nvidia-smi -c.
type ComputeMode string

// The compute modes of nvmlComputeMode_t.
const (
	ComputeDefault    ComputeMode = "default"
	ComputeExclusive  ComputeMode = "exclusive-process"
	ComputeProhibited ComputeMode = "prohibited"
)

// FindingKind is what a finding is about.
type FindingKind string

// The kinds of findings, a closed list.
const (
	OverGrant     FindingKind = "over-grant"     // containers of a grant use more than it
	OutsideLedger FindingKind = "outside-ledger" // somebody uses a GPU without a grant for it
	Unexplained   FindingKind = "unexplained"    // memory in use that no process accounts for
	ModeChanged   FindingKind = "mode-changed"   // the GPU's compute mode does not go with its grants'
	LayoutChanged FindingKind = "layout-changed" // MIG devices came or went behind the inventory
	GPULost       FindingKind = "gpu-lost"       // a GPU does not answer or is gone
	GPUError      FindingKind = "gpu-error"      // the driver reported an XID
	LimitChanged  FindingKind = "limit-changed"  // a memory limit of the driver's is not what the ledger says

	// HandlerChanged is about an engine and no GPU: its default handler was gpuledger and is not
	// any more.
	HandlerChanged FindingKind = "handler-changed"
)

// FindingKinds lists every kind.
var FindingKinds = []FindingKind{OverGrant, OutsideLedger, Unexplained, ModeChanged, LayoutChanged, GPULost,
	GPUError, LimitChanged, HandlerChanged}

// Finding is something on the GPUs that the ledger does not say.
type Finding struct {
	Kind    FindingKind `json:"kind"`
	GPU     string      `json:"gpu"`   // UUID
	Index   int         `json:"index"` // -1: it has none, or none any more
	Bytes   Bytes       `json:"bytes"` // of an over-grant what is beyond it, else what is in use
	Grant   ID          `json:"grant,omitzero"`
	User    User        `json:"user,omitzero"`
	Message string      `json:"message"`
	Since   time.Time   `json:"since,omitzero"`
}

// Key is the same for the same finding in another sample.
func (f Finding) Key() string {
	return string(f.Kind) + "\x00" + f.GPU + "\x00" + string(f.Grant) + "\x00" + f.User.Key()
}

// User is who uses a GPU: a container, or a process of the node itself.
type User struct {
	Container string   `json:"container,omitzero"` // its id; "" is a process of the node
	Engine    Engine   `json:"engine,omitzero"`    // where its cgroup or its binding tells
	Pod       Identity `json:"pod,omitzero"`       // only for people, but for the UID of a binding's
	// the container's own, from the hierarchy's root; "" where that cannot be told
	Cgroup    string    `json:"cgroup,omitzero"`
	Command   string    `json:"command,omitzero"` // of the first process, as the kernel has it
	Processes []Process `json:"processes,omitempty"`
	Exempt    bool      `json:"exempt,omitzero"` // policy lets it use GPUs without a grant
}

// Key is the same for the same user in another sample: containers by id, processes of the node by
// pid and start.
func (u User) Key() string {
	if u.Container != "" {
		return u.Cgroup + "\x00" + u.Container
	}
	if len(u.Processes) == 0 {
		return ""
	}
	return u.Processes[0].String()
}
