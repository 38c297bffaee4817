package grant

import (
	"slices"
	"strconv"
)

// Device is what a grant can hold: a GPU, or a MIG device with its GPU.
type Device struct {
	GPU  GPU
	MIG  *MIGDevice // nil: the whole GPU
	Part int        // the MIG device's index in GPU.MIG
}

// Devices lists all devices of the node: each GPU, followed by its MIG devices.
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

// Device finds a device by the name that a user gives: a UUID, a GPU's index, or "0:1" for the
// second MIG device of GPU 0.
func (inv Inventory) Device(name string) (Device, bool) {
	if gpu, found := inv.Find(name); found { // the usual case, without building a list
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

// UUID returns the UUID by which the device is granted.
func (d Device) UUID() string {
	if d.MIG != nil {
		return d.MIG.UUID
	}
	return d.GPU.UUID
}

// Name returns the short name of the device: "0", or "0:1" for a MIG device.
func (d Device) Name() string {
	name := strconv.Itoa(d.GPU.Index)
	if d.MIG != nil {
		name += ":" + strconv.Itoa(d.Part)
	}
	return name
}

// Memory returns the memory of the device that can be granted.
func (d Device) Memory() Bytes {
	if d.MIG != nil {
		return d.MIG.Memory
	}
	return d.GPU.Memory
}

// SharingMemory lists the UUIDs of the devices that have the same memory: the compute instances of
// one GPU instance, or the device alone.
func (d Device) SharingMemory() (uuids []string) {
	if d.MIG == nil {
		return []string{d.GPU.UUID}
	}
	for _, m := range d.GPU.MIG {
		if m.GI == d.MIG.GI {
			uuids = append(uuids, m.UUID)
		}
	}
	return uuids
}

// Trouble says why the device cannot be used; "" if it can.
func (d Device) Trouble() string {
	switch {
	case d.GPU.Health != Healthy:
		return d.GPU.Health
	case d.MIG == nil && len(d.GPU.MIG) > 0:
		return "is partitioned into MIG devices"
	case d.MIG != nil && d.MIG.Caps == [2]int{}:
		return "has no capability that the driver reports"
	}
	return ""
}
