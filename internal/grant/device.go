package grant

import (
	"slices"
	"strconv"
)

// Device is what a grant can hold: a GPU, or a MIG device together with the GPU that it is a part
// of.
type Device struct {
	GPU  GPU
	MIG  *MIGDevice // nil: the whole GPU
	Part int        // which of the GPU's MIG devices, from 0
}

// Devices lists all of the node: each GPU, and behind it its MIG devices.
func (inv Inventory) Devices() []Device {
	list := make([]Device, 0, len(inv.GPUs))
	for _, gpu := range inv.GPUs {
		list = append(list, Device{GPU: gpu})
		for i := range gpu.MIG {
			list = append(list, Device{GPU: gpu, MIG: &gpu.MIG[i], Part: i})
		}
	}
	return list
}

// Device looks one up as a user names it: by UUID, by a GPU's index, or as "0:1", the second MIG
// device of GPU 0.
func (inv Inventory) Device(name string) (Device, bool) {
	if gpu, found := inv.Find(name); found { // almost always: no list is made for it
		return Device{GPU: gpu}, true
	}
	devices := inv.Devices()
	i := slices.IndexFunc(devices,
		func(d Device) bool { return d.MIG != nil && (d.UUID() == name || d.Name() == name) })
	if i < 0 {
		return Device{}, false
	}
	return devices[i], true
}

// UUID is what it is granted by.
func (d Device) UUID() string {
	if d.MIG != nil {
		return d.MIG.UUID
	}
	return d.GPU.UUID
}

// Name is what people call it: "0", or "0:1" of a MIG device.
func (d Device) Name() string {
	name := strconv.Itoa(d.GPU.Index)
	if d.MIG != nil {
		name += ":" + strconv.Itoa(d.Part)
	}
	return name
}

// Memory is what can be granted of it.
func (d Device) Memory() Bytes {
	if d.MIG != nil {
		return d.MIG.Memory
	}
	return d.GPU.Memory
}

// Trouble is why nobody can use it, or "".
func (d Device) Trouble() string {
	switch {
	case d.GPU.Health != Healthy:
		return d.GPU.Health
	case d.MIG == nil && len(d.GPU.MIG) > 0:
		return "is partitioned into MIG devices"
	case d.MIG != nil && d.MIG.Caps == [2]int{}:
		return "has no capability that the driver tells of"
	}
	return ""
}
