package grant

// Request is what a container asks for, read from its spec: every way in which it can reach a GPU,
// and its references to grants. A request gives no right; a grant does.
type Request struct {
	Container Container
	// a pod's sandbox, by its engine's annotation: only what no engine writes into a sandbox's spec
	// counts as asking
	Sandbox    bool
	Privileged bool     // AllDevices, or CAP_SYS_ADMIN together with nodes of GPUs
	AllDevices bool     // a device rule allows it every device
	SysAdmin   bool     // CAP_SYS_ADMIN, with which it can remove its device rules
	NodeRoot   []string // ways in which it is equivalent to root on the node, as "mount:/host"
	Noted      []string // other facts for the audit log; they change no verdict
	Hits       []Hit
	// hits that may undo what enforces a grant; they do not ask for a GPU, but no grant is given
	// together with them
	Doubtful   []Hit
	Dropped    []Removal // what does not ask for a GPU and is removed when a grant is admitted
	References []Mention
	// the grants that were given to it, by their ids: those whose CDI devices the engine has added,
	// and those of the device plugin. References has only one of them.
	Injected    []Mention
	Allocations []Allocation
	// the annotation by which it must adopt an allocation, as "annotation:gpuledger.dev/grant"; "":
	// none
	MustAdopt string
	Devices   DeviceMap // the device map with which GPU nodes were found
	// the user id of its first process in the node's ids; -1 if a user namespace maps it to none
	UID    int
	Cgroup string // the cgroup in the spec; "": the runtime chooses

	// Unruled says that its runtime does not run as root of the node, so no device rule takes
	// effect. It can open what its Hits bring, and cannot make device nodes.
	Unruled bool

	// CanSetDriverLimit says that a hook of gpuledger's runs in its create or will be added, so the
	// driver's own limit can be set.
	CanSetDriverLimit bool

	// Unclosed says that the container has its own user namespace, and that its device rules do not
	// begin with denying all. Podman writes such rules there for every container. Rules has them if
	// they are plain allows.
	Unclosed bool
	Rules    []DeviceRule

	Capabilities []Capability // the parts of the driver that it asks for
	Compat32     bool         // it asks for 32-bit libraries, too
	Layout       Layout       // the layout of its image, if that was read
	Own          []OwnLibrary // sorted by Place; searched for only if a limit has to cover them
}

// Container identifies the container, as far as it is known.
type Container struct {
	Engine      Engine
	RuntimeRoot string // the real runtime's --root; "" if nothing is created
	ID          string
	Bundle      string
	Pod         Identity // the trusted identity; zero if the engine proves none
}

// Name returns the name of the container for people.
func (c Container) Name() string {
	if c.Pod.Container != "" {
		return c.Pod.Container
	}
	return c.ID
}

// Identity is a container's place in a pod, from annotations that only the engine can have written.
type Identity struct {
	UID       string `json:"uid,omitzero"` // of the pod; "" for engines that do not provide it
	Namespace string `json:"namespace,omitzero"`
	Pod       string `json:"name,omitzero"`
	Container string `json:"container,omitzero"`
}

// Owner returns the owner that the identity proves; "" if it proves none.
func (i Identity) Owner() Owner {
	if i.UID == "" || i.Container == "" {
		return ""
	}
	return PodOwner(i.UID, i.Container)
}

// Hit is one way to a GPU in a spec.
type Hit struct {
	Vector  string // where: "env:NVIDIA_VISIBLE_DEVICES", "device:/dev/nvidia0", "rule:3", "mount:/dev", ...
	Value   string // the value there
	Code    Code   // the code of the refusal if no grant covers it
	Cover   Cover  // how a grant can cover it
	GPUs    []string
	Node    DeviceNode
	Grant   ID      // with CoverRecord: the grant of the record
	Removal Removal // how to remove it from the spec
}

// RestoreVector is the Vector of a Hit of a container whose restore may leave it without its device
// rules.
const RestoreVector = "restore"

// UnknownTarget is part of the Value of a Hit with a path whose target is unknown beforehand: it
// passes through a link in /proc that differs between processes or that its process can change, or
// through the container's own mounts.
const UnknownTarget = "whose target is known only when the runtime opens it"

// Cover is how a grant covers a Hit.
type Cover int

// The values of Cover.
const (
	CoverNever Cover = iota // no grant covers it
	// each of Hit.GPUs must be granted: UUIDs or indexes; "all" means the granted ones
	CoverGPUs
	CoverNode   // Hit.Node must be part of the grant
	CoverDrop   // a grant removes it: gpuledger injects what it asks for
	CoverNarrow // a grant replaces the spec's device rules with its own
	// a record of a grant where gpuledger mounts one: that of the same grant stays, another is
	// removed
	CoverRecord
)

// DeviceNode is a device node in the driver's terms, regardless of its path.
type DeviceNode struct {
	Class NodeClass
	Minor int // -1: every minor of the class
}

// NodeClass is the kind of a device node of the driver: its name in /proc/devices. Nodes of major
// 195 are distinguished by minor.
type NodeClass string

// The classes that decisions distinguish. Any other character device of NVIDIA's driver has its
// name as class.
const (
	ClassGPU     NodeClass = "nvidia"         // /dev/nvidiaN
	ClassControl NodeClass = "nvidiactl"      // /dev/nvidiactl
	ClassModeset NodeClass = "nvidia-modeset" // /dev/nvidia-modeset
	ClassUVM     NodeClass = "nvidia-uvm"     // /dev/nvidia-uvm, /dev/nvidia-uvm-tools
	ClassCaps    NodeClass = "nvidia-caps"    // /dev/nvidia-caps/*
	ClassDRM     NodeClass = "drm"            // /dev/dri/* of an NVIDIA GPU
)

// Majors and minors that the driver has always had (nv-chardev-numbers.h), and the major of Linux's
// DRM.
const (
	MajorNVIDIA  = 195
	MinorControl = 255
	MinorModeset = 254
	MajorDRM     = 226
)

// IsDynamicMajor reports whether Linux assigns a character device's major dynamically: 254 down to
// 234, then 511 down to 384 (find_dynamic_major, fs/char_dev.c). All majors of NVIDIA are dynamic
// but 195 and that of DRM.
func IsDynamicMajor(major int) bool {
	return 234 <= major && major <= 254 || 384 <= major && major <= LastMajor
}

// LastMajor is the highest character device major that Linux assigns (CHRDEV_MAJOR_DYN_EXT_START,
// include/linux/fs.h).
const LastMajor = 511

// DeviceMap distinguishes the character devices of GPUs from others on this node. All majors but
// 195 are read from the system.
type DeviceMap struct {
	Majors map[int]NodeClass // of NVIDIA's driver
	DRM    map[int]bool      // minors of major 226; true: an NVIDIA GPU's. Nil if not needed.
	Taken  map[int]bool      // majors that any driver has registered. Nil if not needed.
}

// Removal is something that an edit removes from a spec, by name, so that a repeated removal does
// no harm.
type Removal struct {
	Kind RemovalKind
	// the variable, the node's path, the hook's path, the annotation's key, the mount's destination
	Name string
}

// RemovalKind is the part of a spec that a Removal is about.
type RemovalKind string

// The kinds of removal.
const (
	RemoveEnv        RemovalKind = "env"
	RemoveDevice     RemovalKind = "device"
	RemoveHook       RemovalKind = "hook"
	RemoveAnnotation RemovalKind = "annotation"
	RemoveMount      RemovalKind = "mount"
	RemoveRule       RemovalKind = "rule" // its name is, for example, "c 195:254"
)

// String returns the removal as explain prints it.
func (r Removal) String() string { return string(r.Kind) + ":" + r.Name }

// Mention is a reference to a grant that a container carries.
type Mention struct {
	Source string // "annotation:gpuledger.dev/grant.train", "env:GPULEDGER_GRANT"
	// it names this container; a pod-level annotation applies to every container and is not a
	// request of one
	Asks bool
	Reference
	Malformed string // the parse error, or ""
}

// Allocation is what a scheduler wrote about a container, or what the container asks for itself. It
// must agree with a grant and gives no right by itself.
type Allocation struct {
	Source  string   // dialect and key, as "annotation:gpuledger.dev/memory"
	Own     bool     // it is of gpuledger's own dialect
	Env     bool     // it is a variable, which an image can set: beside a grant it says nothing
	Asks    bool     // it names this container, so it is a request
	GPUs    []string // UUIDs or indexes; nil: not stated
	Number  bool     // GPUs is one number: a container that asks means how many, not which
	Named   bool     // the GPUs are named to the engine: without a size the container asks for all of each
	Minors  []int    // with Named: of the GPUs' nodes
	Memory  Bytes    // bytes in all; 0: not stated
	Units   int      // gpushare's units on each GPU: GiB or MiB, which only the card's total distinguishes
	Total   int      // gpushare's total of the card in the same unit; 0: not stated
	Compute int      // percent; 0: not stated
	Mode    Mode

	InEnv    bool // Units are from the environment, which an image can set; only PodUnits limits them
	PodUnits int  // gpushare's number for all containers of the pod; 0: not stated

	Malformed string
}
