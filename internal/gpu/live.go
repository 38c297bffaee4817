package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// examine sets the health of GPUs that the kernel no longer has. If the kernel has no information
// about GPUs at all, it changes nothing.
func examine(gpus []grant.GPU, h host.Host) {
	devices, drivers := filepath.Join(h.Sys, "bus/pci/devices"), filepath.Join(h.Proc, "driver/nvidia/gpus")
	bus, procfs := exists(devices), exists(drivers)
	for i := range gpus {
		g := &gpus[i]
		if g.PCI == "" || g.Health != grant.Healthy {
			continue
		}
		if bus {
			g.Health = onBus(filepath.Join(devices, g.PCI))
		}
		switch {
		case g.Health != grant.Healthy:
		case procfs && !exists(filepath.Join(drivers, g.PCI)):
			g.Health = "the driver has let go of it"
		}
	}
}

func exists(path string) bool { return unix.Access(path, unix.F_OK) == nil }

// onBus returns the health of a PCI device by its configuration space. A device that has fallen off
// the bus reads as all ones, its vendor id too (Linux, PCI_POSSIBLE_ERROR).
func onBus(device string) string {
	fd, err := unix.Open(filepath.Join(device, "config"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		if !exists(device) {
			return "it is no longer on the PCI bus"
		}
		return grant.Healthy // unknown
	}
	defer unix.Close(fd)
	var id [4]byte
	if n, err := unix.Read(fd, id[:]); err == nil && n == len(id) && id == [4]byte{0xff, 0xff, 0xff, 0xff} {
		return "it has fallen off the PCI bus (see the kernel's log)"
	}
	return grant.Healthy
}

// boundAgain says which GPU was bound to its driver again since the inventory was taken, or "". The
// driver gives a GPU the lowest minor that is free then (nv_linux_add_device_locked in NVIDIA's
// kernel-open/nvidia/nv.c), so two GPUs that were unbound can come back with each other's minors.
// The minor itself is only in the file information of the GPU's directory in /proc. Reading that
// wakes the GPU and waits for a lock of the driver, which may hang (nv_procfs_read_gpu_info).
func boundAgain(gpus []grant.GPU, h host.Host) string {
	for _, g := range gpus {
		if g.Health != grant.Healthy || g.DriverLink == 0 {
			continue
		}
		if now := host.DriverLink(h, g.PCI); now != 0 && now != g.DriverLink {
			return fmt.Sprintf("GPU %d was bound to its driver again after the inventory was taken", g.Index)
		}
	}
	return ""
}

// otherPartitions says which card has other MIG devices than the inventory, or "". Instance numbers
// are reused, so an old number can belong to a new instance. A card that is unhealthy is left out,
// because no grant gets it anyway: a scan finds no MIG devices on one that does not answer, while
// the kernel still lists them, and one that is gone has none. A card that had none answers, and may
// have some now.
func otherPartitions(gpus []grant.GPU, h host.Host) string {
	capabilities := filepath.Join(h.Proc, "driver/nvidia/capabilities")
	if !exists(capabilities) { // an old driver, or no driver
		return ""
	}
	for _, g := range gpus {
		if g.Health != grant.Healthy && g.Health != grant.Unpartitioned {
			continue
		}
		now, err := partitions(filepath.Join(capabilities, fmt.Sprintf("gpu%d/mig", g.Minor)))
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return "cannot tell whether the inventory's MIG devices hold: " + err.Error()
		case len(now) != len(g.MIG):
			return fmt.Sprintf("the inventory has %d MIG devices on GPU %d and it has %d now", len(g.MIG),
				g.Index, len(now))
		}
		for _, m := range g.MIG {
			if !now[[2]int{m.GI, m.CI}] {
				return fmt.Sprintf(
					"the inventory has the MIG instance %d/%d on GPU %d and the driver no longer has it",
					m.GI, m.CI, g.Index)
			}
		}
	}
	return ""
}

// OtherCaps says how the driver's minors of a MIG device differ from the inventory's, or "". It is
// called for each create that uses one: after MIG devices were recreated, the same instance number
// can belong to another.
func OtherCaps(d grant.Device, h host.Host) string {
	now, err := h.MIGMinors(d.GPU.Minor, d.MIG.GI, d.MIG.CI)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("the inventory has MIG device %s and the driver no longer has it", d.Name())
	case err != nil:
		return "cannot tell whether the inventory's MIG devices hold: " + err.Error()
	case now != d.MIG.Caps:
		return fmt.Sprintf("the inventory has capability minors %v for MIG device %s and they are %v now",
			d.MIG.Caps, d.Name(), now)
	}
	return ""
}

// OtherDRM says which GPU has other DRM nodes than the inventory, or "": nvidia-drm can be loaded,
// and loaded again, long after the driver. It is called for creates that use such nodes.
func OtherDRM(gpus []grant.GPU, h host.Host) string {
	for _, g := range gpus {
		device := filepath.Join(h.Sys, "bus/pci/devices", g.PCI)
		if g.PCI == "" || g.Health != grant.Healthy || !exists(device) {
			continue
		}
		if now := host.DRMNodes(h, g.PCI); !slices.Equal(now, g.Render) {
			return fmt.Sprintf("the inventory has DRM nodes %v for GPU %d and they are %v now", g.Render,
				g.Index, now)
		}
	}
	return ""
}

// partitions returns the compute instances of a card, which are directories giN/ciN. A GPU instance
// without one is not a device.
func partitions(dir string) (map[[2]int]bool, error) {
	found := map[[2]int]bool{}
	instances, err := numbered(dir, "gi")
	for _, gi := range instances {
		var computes []int
		if computes, err = numbered(filepath.Join(dir, "gi"+strconv.Itoa(gi)), "ci"); err != nil {
			break
		}
		for _, ci := range computes {
			found[[2]int{gi, ci}] = true
		}
	}
	return found, err
}

// numbered returns the numbers N of the entries named prefixN.
func numbered(dir, prefix string) (numbers []int, err error) {
	names, err := host.Names(dir)
	for _, name := range names {
		if digits, found := strings.CutPrefix(name, prefix); found {
			if n, err := strconv.Atoi(digits); err == nil {
				numbers = append(numbers, n)
			}
		}
	}
	return numbers, err
}
