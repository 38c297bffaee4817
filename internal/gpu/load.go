package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// HintRefresh is what to do about an inventory that does not hold.
const HintRefresh = "run `gpuledger inventory refresh`"

// Load reads the snapshot at path and judges whether it describes this node as it is now, for a
// configuration that takes its inventory from source. The problem is nil when it does. With
// inventory-missing there is no inventory; with inventory-stale it is returned as it was found, for
// who only wants to show it or to know devices by it.
func Load(path string, h host.Host, source grant.SourceKind) (grant.Inventory, *grant.Problem) {
	inv, err := Read(path)
	return judge(inv, err, path, h, source)
}

// Kept is a snapshot that was read, for who asks for it again and again: with the driver's files it
// is 100 KiB. It may be used by many goroutines.
type Kept struct {
	mu    sync.Mutex
	path  string
	stamp host.Stamp
	read  time.Time
	inv   grant.Inventory
}

// Load is as the function. The file is read when it has changed. What it gives has its GPUs to
// itself, and shares the rest.
func (k *Kept) Load(path string, h host.Host, source grant.SourceKind) (grant.Inventory, *grant.Problem) {
	k.mu.Lock()
	defer k.mu.Unlock()
	is, now := host.StampOf(path), time.Now()
	if k.path != path || k.stamp != is || !is.Before(k.read) {
		inv, err := Read(path)
		if err != nil {
			k.path = ""
			return judge(inv, err, path, h, source)
		}
		k.path, k.stamp, k.read, k.inv = path, is, now, inv
	}
	inv := k.inv
	inv.GPUs = slices.Clone(k.inv.GPUs) // their health is seen to
	return judge(inv, nil, path, h, source)
}

func judge(inv grant.Inventory, err error, path string, h host.Host,
	source grant.SourceKind) (grant.Inventory, *grant.Problem) {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return grant.Inventory{}, problem(grant.InventoryMissing,
			"this node has no inventory: there is no "+path)
	case err != nil:
		return grant.Inventory{}, problem(grant.InventoryMissing, err.Error())
	}
	if why := stale(inv, h, source); why != "" {
		return inv, problem(grant.InventoryStale, why)
	}
	if source == grant.NVML {
		examine(inv.GPUs, h)
	}
	return inv, nil
}

func problem(code grant.Code, message string) *grant.Problem {
	return &grant.Problem{Code: code, Message: message, Hint: HintRefresh}
}

// stale says why the inventory can't be trusted now, or "". A reboot can renumber everything, and
// so can the driver's modules when they are loaded again.
func stale(inv grant.Inventory, h host.Host, source grant.SourceKind) string {
	if inv.Source != string(source) {
		return fmt.Sprintf("the inventory was taken from source %q and the configuration says %q", inv.Source,
			source)
	}
	boot, err := h.BootID()
	switch {
	case err != nil:
		return "cannot tell whether the inventory is of this boot: " + err.Error()
	case inv.BootID != boot:
		return "the inventory was taken before the node was booted"
	case source != grant.NVML:
		return ""
	}
	if why := otherDriver(inv, h); why != "" {
		return why
	}
	if why := otherMajors(inv, h); why != "" {
		return why
	}
	return otherPartitions(inv.GPUs, h)
}

// otherDriver compares versions only where the kernel tells one. A driver that is gone altogether
// shows in its majors.
func otherDriver(inv grant.Inventory, h host.Host) string {
	version, err := h.DriverVersion()
	switch {
	case err != nil:
		return "cannot tell whether the inventory is of this driver: " + err.Error()
	case version != "" && version != inv.Driver.Version:
		return fmt.Sprintf("the inventory was taken with driver %s and driver %s is loaded",
			inv.Driver.Version, version)
	}
	return ""
}

// essential majors belong to every injection: one that came after the inventory was taken would be
// missing in it. The others (nvidia-fs, nvidia-nvswitch, ...) may come late without harm to anyone.
var essential = []string{"nvidia", "nvidia-uvm", "nvidia-caps"}

// otherMajors finds a major that changed since the inventory was taken. All but 195 are given out
// when a module is loaded, so after `rmmod nvidia_uvm` and the next use the number can be another:
// nvidia-smi then works and CUDA does not.
func otherMajors(inv grant.Inventory, h host.Host) string {
	now, err := h.NVIDIAMajors()
	if err != nil {
		return "cannot tell whether the inventory's device numbers hold: " + err.Error()
	}
	for _, name := range slices.Sorted(maps.Keys(inv.Majors)) {
		switch major, found := now[name]; {
		case !found:
			return fmt.Sprintf("the inventory has major %d for %s and the driver no longer registers one",
				inv.Majors[name], name)
		case major != inv.Majors[name]:
			return fmt.Sprintf("the inventory has major %d for %s and it is %d now",
				inv.Majors[name], name, major)
		}
	}
	for _, name := range essential {
		if major, found := now[name]; found && !has(inv.Majors, name) {
			return fmt.Sprintf("the inventory has no major for %s and it is %d now", name, major)
		}
	}
	return ""
}

func has(majors map[string]int, name string) bool {
	_, found := majors[name]
	return found
}
