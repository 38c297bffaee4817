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

// HintRefresh is the hint for an inventory that is missing or stale.
const HintRefresh = "run `gpuledger inventory refresh`"

// Load reads the snapshot at path and checks that it describes this node now, for a configuration
// whose inventory comes from source. The problem is nil if it does. With inventory-missing the
// inventory is empty. With inventory-stale it is returned for callers that only print it or
// identify devices.
func Load(path string, h host.Host, source grant.SourceKind) (grant.Inventory, *grant.Problem) {
	inv, err := Read(path)
	return judge(inv, err, path, h, source)
}

// Kept caches a snapshot for repeated loads: with the driver's files it has 100 KiB. Goroutines may
// share it.
type Kept struct {
	mu    sync.Mutex
	path  string
	stamp host.Stamp
	read  time.Time
	inv   grant.Inventory
}

// Load does what the function Load does. It reads the file only if that has changed. The caller
// owns the returned list of GPUs; the rest is shared.
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
	inv.GPUs = slices.Clone(k.inv.GPUs) // examine changes their health
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
	why := stale(inv, h, source)
	if why == "" && source == grant.NVML {
		examine(inv.GPUs, h) // a GPU that is gone has no MIG devices, and closes itself alone
		if why = boundAgain(inv.GPUs, h); why == "" {
			why = otherPartitions(inv.GPUs, h)
		}
	}
	if why != "" {
		return inv, problem(grant.InventoryStale, why)
	}
	return inv, nil
}

func problem(code grant.Code, message string) *grant.Problem {
	return &grant.Problem{Code: code, Message: message, Hint: HintRefresh}
}

// stale says why no part of the inventory describes the node now, or "". A reboot can change every
// number, and so can a reload of the driver's modules.
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
	return otherMajors(inv, h)
}

// otherDriver says whether another driver version is loaded. It compares only if the kernel reports
// a version. If the driver is gone, otherMajors finds that.
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

// essential majors are part of every injection. One that was registered after the inventory was
// taken would be missing there. The others (nvidia-fs, nvidia-nvswitch, ...) may be registered
// later without harm.
var essential = []string{"nvidia", "nvidia-uvm", "nvidia-caps"}

// otherMajors says which major has changed since the inventory was taken. All but 195 are assigned
// when a module is loaded. After `rmmod nvidia_uvm` and the next use the number can differ: then
// nvidia-smi works and CUDA does not.
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
