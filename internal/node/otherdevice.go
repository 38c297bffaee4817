package node

import (
	"cmp"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// otherDevice returns the problem of an inventory that has a device otherwise than the kernel: the
// capabilities of a granted MIG device, and for a container that uses DRM nodes those of a GPU that
// it is granted or may adopt. A simulated node has no driver to ask.
func otherDevice(n *Node, r grant.Request, v grant.View, inv grant.Inventory) *grant.Problem {
	if n.Policy.Inventory.Source != grant.NVML {
		return nil
	}
	var drawn []grant.GPU // the GPUs whose DRM nodes the container uses
	draws := func(d grant.Device) {
		if admission.UsesDRM(r, d) {
			drawn = append(drawn, d.GPU)
		}
	}
	why := ""
	for _, g := range v.Grants {
		for _, s := range g.GPUs {
			d, found := inv.Device(s.UUID)
			if !found {
				continue
			}
			if d.MIG != nil && why == "" {
				why = gpu.OtherCaps(d, n.Host)
			}
			draws(d)
		}
	}
	if v.Whole != nil {
		for _, d := range inv.Devices() {
			draws(d)
		}
	}
	if why = cmp.Or(why, OtherDRM(n, drawn)); why == "" {
		return nil
	}
	return &grant.Problem{Code: grant.InventoryStale, Message: why, Hint: gpu.HintRefresh}
}

// OtherDRM says which of these GPUs of the inventory has other DRM nodes by now, or "".
func OtherDRM(n *Node, gpus []grant.GPU) string {
	if n.Policy.Inventory.Source != grant.NVML {
		return ""
	}
	return gpu.OtherDRM(gpus, n.Host)
}
