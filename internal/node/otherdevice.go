package node

import (
	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// otherDevice returns the problem of an inventory that has a granted device otherwise than the
// kernel: the capabilities of a MIG device, and for a container that uses DRM nodes those of a GPU.
// A simulated node has no driver to ask.
func otherDevice(n *Node, r grant.Request, grants []grant.Grant, inv grant.Inventory) *grant.Problem {
	if n.Policy.Inventory.Source != grant.NVML {
		return nil
	}
	drm := admission.UsesDRM(r)
	for _, g := range grants {
		for _, s := range g.GPUs {
			d, found := inv.Device(s.UUID)
			why := ""
			if found && d.MIG != nil {
				why = gpu.OtherCaps(d, n.Host)
			}
			if found && drm && why == "" {
				why = OtherDRM(n, []grant.GPU{d.GPU})
			}
			if why != "" {
				return &grant.Problem{Code: grant.InventoryStale, Message: why, Hint: gpu.HintRefresh}
			}
		}
	}
	return nil
}

// OtherDRM says which of these GPUs of the inventory has other DRM nodes by now, or "".
func OtherDRM(n *Node, gpus []grant.GPU) string {
	if n.Policy.Inventory.Source != grant.NVML {
		return ""
	}
	return gpu.OtherDRM(gpus, n.Host)
}
