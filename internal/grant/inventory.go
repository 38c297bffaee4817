package grant

import (
	"slices"
	"strconv"
	"time"
)

// Inventory is what the node has: the content of <state_dir>/inventory.json, written ahead of time
// so that no create ever waits for NVML.
type Inventory struct {
	Version int            `json:"version"`
	Taken   time.Time      `json:"taken"`
	BootID  string         `json:"boot_id"` // the boot that it describes; after a reboot it is stale
	Source  string         `json:"source"`  // "nvml" or "simulated"
	Driver  Driver         `json:"driver"`
	Majors  map[string]int `json:"majors"` // character device majors by the driver's name in /proc/devices
	GPUs    []GPU          `json:"gpus"`

	// Of gpuledger itself: looked at when the snapshot is read.
	Shim    Shim    `json:"-"`
	Limiter Limiter `json:"-"`
}

// Driver is the kernel driver that was loaded when the inventory was taken.
type Driver struct {
	Version string `json:"version"` // as 580.142; of a simulated one that of the files, if any
	CUDA    string `json:"cuda"`    // the highest CUDA version that it serves, as 13.0
	Root    string `json:"root"`    // where its user space is found

	// MemoryLimits is CanLimit where the driver can limit the memory of a cgroup, else why not; ""
	// where nobody has asked it.
	MemoryLimits string `json:"memory_limits,omitzero"`

	// of its user space; none where it is not installed below Root
	Files []DriverFile `json:"files,omitempty"`
}

// GPU is a physical GPU.
type GPU struct {
	UUID  string `json:"uuid"`  // as NVML gives it: GPU-xxxxxxxx-...
	Index int    `json:"index"` // NVML's order (PCI bus id); what a user means by "GPU 0"
	Minor int    `json:"minor"` // N of /dev/nvidiaN, which need not be the index
	Name  string `json:"name"`  // product name
	// what can be granted: NVML's total less what the driver keeps for itself
	Memory Bytes    `json:"memory"`
	PCI    string   `json:"pci"`    // bus id, as 0000:3b:00.0
	NUMA   int      `json:"numa"`   // node, or -1
	Render []string `json:"render"` // its DRM nodes, as /dev/dri/renderD128
	// links to these by its address, as /dev/dri/by-path/pci-0000:3b:00.0-render
	Links  []string    `json:"links,omitempty"`
	MIG    []MIGDevice `json:"mig"`    // its partitions; with any, the GPU itself is in mode mig
	Health string      `json:"health"` // Healthy, or what is wrong with it

	Virtual Virtual `json:"virtual,omitzero"` // what this machine has of it; "" is all, or it cannot be told
}

// Virtual is what a machine has of a GPU, in the words of NVML's virtualization modes.
type Virtual string

// The kinds of a GPU that is not simply the machine's own.
const (
	VGPU        Virtual = "vgpu"         // a part that a hypervisor made; the machine is a guest
	PassThrough Virtual = "pass-through" // all of it, given to this guest
	// the machine makes vGPUs of it: what its guests use is in nobody's ledger here
	VGPUHost Virtual = "vgpu-host"
)

// Healthy is the health of a GPU that may be granted.
const Healthy = "ok"

// MIGDevice is a hardware partition of a GPU.
type MIGDevice struct {
	UUID    string `json:"uuid"` // MIG-xxxxxxxx-...
	Profile string `json:"profile"`
	Memory  Bytes  `json:"memory"`
	GI      int    `json:"gi"` // GPU instance id
	CI      int    `json:"ci"` // compute instance id

	// Caps are the minors below /dev/nvidia-caps of its GPU instance and of its compute instance:
	// who can open both may use it. Zero where the driver shows none; minor 0 is nobody's.
	Caps [2]int `json:"caps,omitzero"`
}

// Find looks a GPU up as a user names it: by UUID or by index.
func (inv Inventory) Find(name string) (GPU, bool) {
	i := slices.IndexFunc(inv.GPUs,
		func(g GPU) bool { return g.UUID == name || strconv.Itoa(g.Index) == name })
	if i < 0 {
		return GPU{}, false
	}
	return inv.GPUs[i], true
}
