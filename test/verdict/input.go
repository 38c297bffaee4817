package verdict

import "slices"

// Input is all that a verdict depends on.
type Input struct {
	Config     []byte // the container's config.json
	Engine     string // the engine that calls: containerd, cri-o, podman, docker or none
	CgroupsOff bool   // the engine has switched cgroups off
	Policy     string // config.toml
	Node       Node
	Grants     []Grant
}

// Node is the machine.
type Node struct {
	Inventory Inventory
	GPUs      []GPU
	Majors    map[string]int64 // of NVIDIA's driver in /proc/devices, by name
	Taken     map[int64]bool   // character majors of other drivers in /proc/devices
	Files     map[string]File  // what the sources of mounts and the paths of devices lead to
	Dev       string           // the directory of the node's devices
	Rootless  bool             // the runtime runs as a user
}

// Inventory is what stands in the way of reading the inventory: nothing, or the code.
type Inventory = Code

// GPU is a physical GPU.
type GPU struct {
	UUID    string
	Index   int
	Minor   int64
	Memory  int64
	Healthy bool
	Render  []int64 // minors of its DRM nodes
	MIG     []MIG
}

// MIG is a partition of a GPU.
type MIG struct {
	UUID   string
	Memory int64
	Caps   [2]int64 // minors below /dev/nvidia-caps
}

// File is a file of the node.
type File struct {
	Link   string // to another path
	Device Number // of a device node
}

// Number is the number of a character device.
type Number struct{ Major, Minor int64 }

// Grant is an entry of the ledger.
type Grant struct {
	ID, Secret string
	Owner      string // bearer, pod:UID/CONTAINER, claim:UID
	Mode       string
	Shares     []Share
	Compute    int
	Ties       []string // pod:UID, namespace:NAME
	Expired    bool
	Draining   bool
	Bound      bool   // another container uses it
	Cgroup     string // of that container
	Asked      bool   // a container asked for it
}

// Share is what a grant has of one GPU.
type Share struct {
	UUID   string // of a GPU or MIG device
	Memory int64
}

// Kind is the kind of a verdict.
type Kind string

// The kinds.
const (
	Pass   Kind = "pass"
	Admit  Kind = "admit"
	Refuse Kind = "refuse"
)

// Verdict is what the documents promise.
type Verdict struct {
	Kind    Kind
	Code    Code     // of a refusal
	Codes   []Code   // every code that applies, in the contract's order
	Grant   string   // id of the grant; "" of an allocation that would be entered
	GPUs    []string // UUIDs that an admission gives; nil: placement may choose any
	Partial bool     // the documents do not promise that Codes is all
	Unclear string   // what the documents leave open; "" if nothing
}

// Code is the code of a refusal.
type Code string

// The codes, in the order of docs/refusals.md.
const (
	Internal                   Code = "internal"
	RulesNotEnforced           Code = "rules-not-enforced"
	ConfigInvalid              Code = "config-invalid"
	SpecInvalid                Code = "spec-invalid"
	InventoryMissing           Code = "inventory-missing"
	InventoryStale             Code = "inventory-stale"
	LedgerUnreadable           Code = "ledger-unreadable"
	AnnotationMalformed        Code = "annotation-malformed"
	AnnotationMismatch         Code = "annotation-mismatch"
	GrantNotFound              Code = "grant-not-found"
	GrantOwnerMismatch         Code = "grant-owner-mismatch"
	GrantExpired               Code = "grant-expired"
	GrantInUse                 Code = "grant-in-use"
	GPUUnhealthy               Code = "gpu-unhealthy"
	ModeConflict               Code = "mode-conflict"
	AskNotAllowed              Code = "ask-not-allowed"
	NoCapacity                 Code = "no-capacity"
	LimitUnenforceable         Code = "limit-unenforceable"
	MPSNotReady                Code = "mps-not-ready"
	InjectionImpossible        Code = "injection-impossible"
	VisibleDevicesAll          Code = "visible-devices-all"
	VisibleDevicesOutsideGrant Code = "visible-devices-outside-grant"
	GPUEnv                     Code = "gpu-env"
	GPUDeviceNode              Code = "gpu-device-node"
	GPUDeviceRule              Code = "gpu-device-rule"
	GPUBindMount               Code = "gpu-bind-mount"
	GPUSocket                  Code = "gpu-socket"
	GPUHook                    Code = "gpu-hook"
	CDIDeviceOutsideGrant      Code = "cdi-device-outside-grant"
	PrivilegedGPU              Code = "privileged-gpu"
)

// Order is the order of the codes: of those that apply, the first is the verdict's.
var Order = []Code{
	Internal, RulesNotEnforced, ConfigInvalid, SpecInvalid, InventoryMissing, InventoryStale,
	LedgerUnreadable,
	AnnotationMalformed, AnnotationMismatch, GrantNotFound, GrantOwnerMismatch, GrantExpired, GrantInUse,
	GPUUnhealthy, ModeConflict, AskNotAllowed, NoCapacity, LimitUnenforceable, MPSNotReady,
	InjectionImpossible,
	VisibleDevicesAll, VisibleDevicesOutsideGrant, GPUEnv, GPUDeviceNode, GPUDeviceRule, GPUBindMount,
	GPUSocket,
	GPUHook, CDIDeviceOutsideGrant, PrivilegedGPU,
}

// refuse is a refusal with these codes, of which there is at least one.
func refuse(codes ...Code) Verdict {
	codes = slices.Clone(codes)
	slices.SortFunc(codes, func(a, b Code) int { return slices.Index(Order, a) - slices.Index(Order, b) })
	codes = slices.Compact(codes)
	return Verdict{Kind: Refuse, Code: codes[0], Codes: codes}
}
