package grant

// Request is what a container asks for, read from its spec: every way in which it can reach a GPU,
// and what it says about grants. It is a claim; only a grant makes it true.
type Request struct {
	Container Container
	// a pod's sandbox by its engine's key: it asks only by what no engine writes into one
	Sandbox    bool
	Privileged bool     // AllDevices, or CAP_SYS_ADMIN with nodes of GPUs
	AllDevices bool     // a device rule lets it open everything
	SysAdmin   bool     // CAP_SYS_ADMIN, which can undo device rules by force
	NodeRoot   []string // ways in which it is as good as root on the node, as "mount:/host"
	Noted      []string // what else the audit log should know; it changes no verdict
	Hits       []Hit
	// nobody knows whether they undo what keeps a grant: they ask for nothing, and no grant goes
	// along with them
	Doubtful    []Hit
	Dropped     []Removal // what asks for nothing by itself, and goes when a grant is admitted
	References  []Mention
	Allocations []Allocation
	Devices     DeviceMap // what the finder told GPU nodes by
	// of its first process, as the node counts; -1 where a user namespace maps it to nobody
	UID    int
	Cgroup string // where the spec wants its processes; empty: it leaves that to the runtime

	// Unruled: its runtime does not run as root of the node, so no device rule holds. It can open
	// what its Hits bring, and cannot make nodes of its own.
	Unruled bool

	// Drivable: a hook of ours runs in its create, or is about to, so the driver's own limit can be
	// set.
	Drivable bool

	// Unclosed: in a user namespace of its own, its device rules do not begin by denying all.
	// Podman writes them so there, for whatever container. Rules are those that it has, where they
	// are plain allows.
	Unclosed bool
	Rules    []DeviceRule

	Capabilities []Capability // the parts of the driver that it wants
	Compat32     bool         // it wants 32-bit libraries too
	Layout       Layout       // of its image, where that was looked at
	Own          []OwnLibrary // sorted by place; looked for where a limit has to be put over them
}

// Container is who asks, as far as it can be known.
type Container struct {
	Engine      Engine
	RuntimeRoot string // the real runtime's --root; empty where nothing is created
	ID          string
	Bundle      string
	Pod         Identity // trusted; zero where the engine vouches for nothing
}

// Name is what a person calls the container.
func (c Container) Name() string {
	if c.Pod.Container != "" {
		return c.Pod.Container
	}
	return c.ID
}

// Identity is a container's place in a pod, from annotations that only the engine can have written.
type Identity struct {
	UID       string `json:"uid,omitzero"` // of the pod; empty on engines that do not tell it
	Namespace string `json:"namespace,omitzero"`
	Pod       string `json:"name,omitzero"`
	Container string `json:"container,omitzero"`
}

// Owner is whose grants the identity proves; empty when it proves none.
func (i Identity) Owner() Owner {
	if i.UID == "" || i.Container == "" {
		return ""
	}
	return PodOwner(i.UID, i.Container)
}

// Hit is one way to a GPU that a spec contains.
type Hit struct {
	Vector  string // where: "env:NVIDIA_VISIBLE_DEVICES", "device:/dev/nvidia0", "rule:3", "mount:/dev", ...
	Value   string // what stands there
	Code    Code   // what refuses it when no grant covers it
	Cover   Cover  // how a grant can cover it
	GPUs    []string
	Node    Node
	Grant   ID      // with CoverRecord: whose record it is
	Removal Removal // how to take it out of the spec
}

// Elsewhere is what the value of a Hit says of a path that nobody can judge beforehand: through a
// process's own links in /proc, or through the container's own mounts.
const Elsewhere = "which leads elsewhere when the runtime comes to it"

// Cover is how a grant covers a Hit.
type Cover int

// The covers.
const (
	CoverNever Cover = iota // no grant does
	// each of Hit.GPUs (UUIDs or indexes; "all" stands for the granted ones) must be granted
	CoverGPUs
	CoverNode   // Hit.Node must come with the grant
	CoverDrop   // a grant drops it: what it asks for is injected by us
	CoverNarrow // a grant puts its own device rules in place of the spec's
	CoverRecord // a grant's own record where ours goes: its own stays, another's is dropped
)

// Node is a device node as the driver knows it, whatever its path.
type Node struct {
	Class NodeClass
	Minor int // -1: all of the class
}

// NodeClass is what a device node of the driver is for: its name in /proc/devices, major 195 told
// apart by minor.
type NodeClass string

// The classes that a decision tells apart. Any other character device of NVIDIA's driver has its
// name as class.
const (
	ClassGPU     NodeClass = "nvidia"         // /dev/nvidiaN
	ClassControl NodeClass = "nvidiactl"      // /dev/nvidiactl
	ClassModeset NodeClass = "nvidia-modeset" // /dev/nvidia-modeset
	ClassUVM     NodeClass = "nvidia-uvm"     // /dev/nvidia-uvm, /dev/nvidia-uvm-tools
	ClassCaps    NodeClass = "nvidia-caps"    // /dev/nvidia-caps/*
	ClassDRM     NodeClass = "drm"            // /dev/dri/* of an NVIDIA GPU
)

// Majors and minors that the driver has had from its beginning (nv-chardev-numbers.h), and Linux's
// DRM.
const (
	MajorNVIDIA  = 195
	MinorControl = 255
	MinorModeset = 254
	MajorDRM     = 226
)

// IsDynamicMajor reports whether Linux gives a character device's major to whichever driver comes
// next: 254 down to 234, then 511 down to 384 (find_dynamic_major, fs/char_dev.c). All of NVIDIA's
// but 195 and DRM's are such.
func IsDynamicMajor(major int) bool {
	return 234 <= major && major <= 254 || 384 <= major && major <= LastMajor
}

// LastMajor is the highest character device major that Linux hands out (CHRDEV_MAJOR_DYN_EXT_START,
// include/linux/fs.h).
const LastMajor = 511

// DeviceMap tells the character devices of GPUs from others on this node. Majors are read from the
// system and never baked in, but for 195.
type DeviceMap struct {
	Majors map[int]NodeClass // of NVIDIA's driver
	DRM    map[int]bool      // minors of major 226; true: an NVIDIA GPU's. Nil where nothing asked for it.
	Taken  map[int]bool      // majors that any driver has registered. Nil where nothing asked for it.
}

// Removal is something that an edit takes out of a spec, by name, so that it can be taken out
// twice.
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
	RemoveRule       RemovalKind = "rule" // named as "c 195:254"
)

// String is the removal as explain prints it.
func (r Removal) String() string { return string(r.Kind) + ":" + r.Name }

// Mention is a reference to a grant that a container carries.
type Mention struct {
	Source string // "annotation:gpuledger.dev/grant.train", "env:GPULEDGER_GRANT"
	// it names this container; a pod-level annotation is there for all and makes nobody a requester
	Asks bool
	Reference
	Malformed string // the reader's error, when it cannot be read
}

// Allocation is what a scheduler wrote about a container. It must agree with the grant; it is none
// by itself.
type Allocation struct {
	Source  string   // dialect and key, as "annotation:gpuledger.dev/memory"
	Asks    bool     // it names this container, so it is a request
	GPUs    []string // UUIDs or indexes; nil: it does not say
	Memory  Bytes    // in all; 0: it does not say
	Units   int      // gpushare counts in GiB or MiB, which only the card's total tells apart; on each GPU
	Total   int      // gpushare's total of the card in the same unit; 0: it does not say
	Compute int      // percent; 0: it does not say
	Mode    Mode

	InEnv    bool // Units stand in the environment, which an image can set; only PodUnits bounds them
	PodUnits int  // gpushare's figure for all containers of the pod; 0: it does not say

	Malformed string
}
