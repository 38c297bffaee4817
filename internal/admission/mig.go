package admission

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// join tells a MIG device's seat what it has in common with the others of its GPU, and a
// partitioned GPU's who holds these. A GPU that is granted as a whole, from before it was
// partitioned, takes no other mode.
func (s *seat) join(seats []seat) {
	if s.device.MIG == nil {
		for _, part := range seats {
			if part.device.GPU.UUID == s.device.GPU.UUID && part.mode == grant.MIG {
				s.parts = append(s.parts, part.holders...)
			}
		}
		return
	}
	for _, other := range seats {
		switch {
		case other.device.GPU.UUID != s.device.GPU.UUID || other.mode == "":
		case other.device.MIG == nil:
			s.mode, s.holders, s.free = other.mode, other.holders, 0
		default:
			s.beside++
			s.groups = append(s.groups, other.groups...)
		}
	}
}

// ofKind are the seats that the ask is about: MIG devices in mode mig, GPUs in any other.
func (a Ask) ofKind(seats []seat) []seat {
	return slices.DeleteFunc(slices.Clone(seats), func(s seat) bool { return a.otherKind(s) })
}

func (a Ask) otherKind(s seat) bool { return (a.Mode == grant.MIG) != (s.device.MIG != nil) }

// notOfKind says why a seat that was named is none for the mode.
func (a Ask) notOfKind(s seat) string {
	if s.device.MIG != nil {
		return "is a MIG device, which mode mig alone grants"
	}
	if n := len(s.device.GPU.MIG); n > 0 {
		return fmt.Sprintf("is partitioned; mode mig grants its MIG devices, %s:0 to %s:%d", s.device.Name(),
			s.device.Name(), n-1)
	}
	return "is not partitioned; mode mig grants MIG devices, which an administrator makes"
}

// otherSize says why a MIG device is not of the size that is asked for, or "".
func (a Ask) otherSize(s seat) string {
	switch {
	case a.Mode != grant.MIG:
	case a.Profile != "" && s.device.MIG.Profile != a.Profile:
		return "is a " + s.device.MIG.Profile
	case a.each() > s.space:
		return fmt.Sprintf("has %s", s.space)
	}
	return ""
}

// bySize puts the smallest MIG device first that is large enough: GPUs are all of a size to it.
func (a Ask) bySize(x, y seat) int {
	if a.Mode != grant.MIG {
		return 0
	}
	return cmp.Compare(x.space, y.space)
}

// migUsage says what can never be granted in mode mig, or of MIG devices in another.
func (a Ask) migUsage() string {
	switch {
	case a.Mode != grant.MIG && a.Profile != "":
		return fmt.Sprintf("a profile is a MIG device's, and mode %s grants none; use mode mig", a.Mode)
	case a.Mode != grant.MIG:
	case a.Compute != 0:
		return "a MIG device has compute of its own; leave the compute out"
	case a.Profile == "" && a.Memory == 0 && len(a.Names) == 0:
		return "mode mig needs a profile, as 1g.10gb, an amount of memory, or the names of MIG " +
			"devices, as 0:1"
	}
	return ""
}

// partitions is what an ask in mode mig wants, in words.
func (a Ask) partitions() string {
	what := "MIG device"
	if a.Profile != "" {
		what += " " + a.Profile
	}
	if a.count() > 1 {
		what = fmt.Sprintf("%d times a %s", a.count(), what)
	} else {
		what = "a " + what
	}
	if a.Memory > 0 {
		what += " of " + a.each().String()
	}
	return what
}

// DeviceNodes are the nodes that open a GPU or a MIG device: the card's own, and those of the
// device's two instances.
func DeviceNodes(inv grant.Inventory, d grant.Device) []*cdispec.DeviceNode {
	nodes := []*cdispec.DeviceNode{GPUNode(d.GPU)}
	if d.MIG == nil {
		return nodes
	}
	for _, minor := range d.MIG.Caps {
		if node := CapsNode(inv, minor); node != nil {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// devices are the grant's as the inventory knows them.
func (c *asking) devices() []grant.Device { return c.parts.devices }

// look finds them, once: each node and rule of a spec is held against them.
func (c *asking) look() {
	c.parts = parts{devices: make([]grant.Device, 0, len(c.grant.GPUs)),
		gpus: make([]grant.GPU, 0, len(c.grant.GPUs))}
	for _, s := range c.grant.GPUs {
		if d, found := c.inventory.Device(s.UUID); found {
			c.parts.devices, c.parts.gpus = append(c.parts.devices, d), append(c.parts.gpus, d.GPU)
		}
	}
}

// hasInstance reports whether a node below /dev/nvidia-caps belongs to a granted MIG device.
func (c *asking) hasInstance(minor int) bool {
	return minor != 0 && slices.ContainsFunc(c.devices(), func(d grant.Device) bool {
		return d.MIG != nil && slices.Contains(d.MIG.Caps[:], minor)
	})
}

// otherInstances are the directories in which the driver tells of the MIG devices beside a granted
// one.
func (c *asking) otherInstances() []string {
	var paths []string
	for _, gpu := range c.gpus() {
		for _, m := range gpu.MIG {
			dir := fmt.Sprintf("/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d", gpu.Minor, m.GI)
			switch same := c.sameInstance(gpu, m); {
			case same == nil:
				paths = append(paths, dir)
			case !slices.Contains(same, m.CI):
				paths = append(paths, path.Join(dir, fmt.Sprintf("ci%d", m.CI)))
			}
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// sameInstance lists the compute instances that are granted of a MIG device's GPU instance.
func (c *asking) sameInstance(gpu grant.GPU, m grant.MIGDevice) (computes []int) {
	for _, other := range gpu.MIG {
		if other.GI == m.GI && c.grant.Has(other.UUID) {
			computes = append(computes, other.CI)
		}
	}
	return computes
}

// drawsGraphics reports whether a device can: of MIG devices those of a profile with graphics
// alone.
func drawsGraphics(d grant.Device) bool {
	return d.MIG == nil || strings.Contains(d.MIG.Profile, "+gfx")
}

// StrengthOf is what holds a container to a grant of a mode.
func StrengthOf(mode grant.Mode) grant.Strength {
	switch mode {
	case grant.MIG:
		return grant.StrengthHardware
	case grant.MPS:
		return grant.StrengthServer
	}
	return grant.StrengthNone
}
