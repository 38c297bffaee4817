package grant

import (
	"slices"
	"strconv"
	"time"
)

// Inventory is the GPUs and the driver of the node: the content of <state_dir>/inventory.json. It
// is written ahead of time, so that no create waits for NVML.
type Inventory struct {
	Version int            `json:"version"`
	Taken   time.Time      `json:"taken"`
	BootID  string         `json:"boot_id"` // the boot that it describes; it is stale after a reboot
	Source  string         `json:"source"`  // "nvml" or "simulated"
	Driver  Driver         `json:"driver"`
	Majors  map[string]int `json:"majors"` // character device majors by the driver's name in /proc/devices
	GPUs    []GPU          `json:"gpus"`

	// The rest is about gpuledger itself and is found when the snapshot is read.
	Shim    Shim    `json:"-"`
	Limiter Limiter `json:"-"`
}

// Driver is the kernel driver that was loaded when the inventory was taken.
type Driver struct {
	Version string `json:"version"` // as 580.142; simulated: that of the driver files, if any
	CUDA    string `json:"cuda"`    // the highest CUDA version that it supports, as 13.0
	Root    string `json:"root"`    // where its user space is installed

	// MemoryLimits is CanLimit if the driver can limit the memory of a cgroup, otherwise why not.
	// "": unknown.
	MemoryLimits string `json:"memory_limits,omitzero"`

	// files of its user space; none if it is not installed below Root
	Files []DriverFile `json:"files,omitempty"`
}

// GPU is a physical GPU.
type GPU struct {
	UUID  string `json:"uuid"`  // as NVML writes it: GPU-xxxxxxxx-...
	Index int    `json:"index"` // NVML's order (PCI bus id); what a user means by "GPU 0"
	Minor int    `json:"minor"` // N of /dev/nvidiaN, which need not be the index
	Name  string `json:"name"`  // product name
	// bytes that can be granted: NVML's total without what the driver keeps for itself
	Memory Bytes    `json:"memory"`
	PCI    string   `json:"pci"`    // bus id, as 0000:3b:00.0
	NUMA   int      `json:"numa"`   // node, or -1
	Render []string `json:"render"` // its DRM nodes, as /dev/dri/renderD128
	// links to these by PCI address, as /dev/dri/by-path/pci-0000:3b:00.0-render
	Links  []string    `json:"links,omitempty"`
	MIG    []MIGDevice `json:"mig"`    // its partitions; if it has any, the GPU is in mode mig
	Health string      `json:"health"` // Healthy, or why it cannot be granted

	// identifies its binding to the driver (host.DriverLink), which gave it the minor; 0: unknown
	DriverLink uint64 `json:"driver_link,omitzero"`

	Virtual Virtual `json:"virtual,omitzero"` // which part of it this machine has; "": all, or unknown
}

// Virtual says which part of a GPU a machine has, in the words of NVML's virtualization modes.
type Virtual string

// The values of Virtual for a GPU that is virtual or shared with guests.
const (
	VGPU        Virtual = "vgpu"         // a part that a hypervisor made; this machine is a guest
	PassThrough Virtual = "pass-through" // all of it, passed to this guest
	// this machine makes vGPUs of it; its guests' use is not in this ledger
	VGPUHost Virtual = "vgpu-host"
)

// Healthy is the health of a GPU that may be granted.
const Healthy = "ok"

// Unpartitioned is the health of a GPU that answers, and has nothing that could be granted before
// someone makes MIG devices on it.
const Unpartitioned = "it is in MIG mode and has no MIG device"

// NoMemory is the health of a GPU that answers, and never has anything that could be granted.
const NoMemory = "it has no memory of its own that could be granted: NVML reports none, as on GPUs " +
	"that use the host's memory"

// MIGDevice is a hardware partition of a GPU.
type MIGDevice struct {
	UUID    string `json:"uuid"` // MIG-xxxxxxxx-...
	Profile string `json:"profile"`
	Memory  Bytes  `json:"memory"`
	GI      int    `json:"gi"` // GPU instance id
	CI      int    `json:"ci"` // compute instance id

	// Caps are the minors below /dev/nvidia-caps of its GPU instance and its compute instance. A
	// process that can open both may use it. Zeros: the driver shows none; no instance has minor 0.
	Caps [2]int `json:"caps,omitzero"`
}

// Find finds a GPU by the name that a user gives: UUID or index.
func (inv Inventory) Find(name string) (GPU, bool) {
	i := slices.IndexFunc(inv.GPUs,
		func(g GPU) bool { return g.UUID == name || strconv.Itoa(g.Index) == name })
	if i < 0 {
		return GPU{}, false
	}
	return inv.GPUs[i], true
}
