package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// examine looks at the GPUs as the kernel has them now, and gives those that it has lost a health
// that says so. A kernel that tells nothing about GPUs at all proves nothing.
func examine(gpus []grant.GPU, h host.Host) {
	devices, drivers := filepath.Join(h.Sys, "bus/pci/devices"), filepath.Join(h.Proc, "driver/nvidia/gpus")
	bus, procfs := there(devices), there(drivers)
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
		case procfs && !there(filepath.Join(drivers, g.PCI)):
			g.Health = "the driver has let go of it"
		}
	}
}

func there(path string) bool { return unix.Access(path, unix.F_OK) == nil }

// onBus is the health of a PCI device as its bus tells it. Of one that fell off the bus every bit
// of the configuration space reads as one, its vendor too (Linux, PCI_POSSIBLE_ERROR).
func onBus(device string) string {
	fd, err := unix.Open(filepath.Join(device, "config"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		if !there(device) {
			return "it is no longer on the PCI bus"
		}
		return grant.Healthy // it cannot be told
	}
	defer unix.Close(fd)
	var id [4]byte
	if n, err := unix.Read(fd, id[:]); err == nil && n == len(id) && id == [4]byte{0xff, 0xff, 0xff, 0xff} {
		return "it has fallen off the PCI bus (see the kernel's log)"
	}
	return grant.Healthy
}

// otherPartitions finds a card whose MIG devices are not those of the inventory. The numbers of
// instances are handed out anew, so what has the old number can be another's.
func otherPartitions(gpus []grant.GPU, h host.Host) string {
	capabilities := filepath.Join(h.Proc, "driver/nvidia/capabilities")
	if !there(capabilities) { // an old driver, or none
		return ""
	}
	for _, g := range gpus {
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

// OtherCaps tells whether the driver has other minors for a MIG device than the inventory, or "".
// They are read for each create that uses one: what has an instance's number after MIG devices were
// made anew can be another's.
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

// partitions are the compute instances of a card, as directories giN/ciN. A GPU instance without
// one is no device.
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

// numbered lists the numbers N of the entries prefixN.
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
