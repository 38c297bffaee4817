package node

import (
	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// otherPartition returns the problem of an inventory that has a granted MIG device otherwise than
// the driver. A simulated node has no driver to ask.
func otherPartition(n *Node, grants []grant.Grant, inv grant.Inventory) *grant.Problem {
	if n.Policy.Inventory.Source != grant.NVML {
		return nil
	}
	for _, g := range grants {
		for _, s := range g.GPUs {
			d, found := inv.Device(s.UUID)
			if !found || d.MIG == nil {
				continue
			}
			if why := gpu.OtherCaps(d, n.Host); why != "" {
				return &grant.Problem{Code: grant.InventoryStale, Message: why, Hint: gpu.HintRefresh}
			}
		}
	}
	return nil
}
