package doctor

import (
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// pools checks [[pool]] against the inventory. That an index and a UUID are one GPU, or that an
// entry is no GPU of this node, is seen nowhere else.
func pools(f Facts) (lines []Line) {
	if f.InventoryProblem != nil {
		return nil
	}
	for _, gpu := range f.Inventory.GPUs {
		in := poolsOf(gpu, f.Policy.Pools)
		if len(in) > 1 {
			lines = append(lines, Line{Status: Problem,
				Message: fmt.Sprintf("GPU %d (%s) is in two pools, pool[%d] and pool[%d]: nothing is granted",
					gpu.Index, gpu.UUID, in[0], in[1]),
				Hint: "leave it in one [[pool]] of the configuration"})
		}
	}
	for i, pool := range f.Policy.Pools {
		for _, entry := range pool.GPUs {
			one := grant.Pool{GPUs: []string{entry}}
			if !slices.ContainsFunc(f.Inventory.GPUs, one.Has) {
				lines = append(lines, Line{Status: Warning,
					Message: fmt.Sprintf("pool[%d].gpus: %q is no GPU of this node", i, entry),
					Hint:    "`gpuledger gpus` lists the indexes and, with --json, the UUIDs"})
			}
		}
	}
	return lines
}

// poolsOf returns which pools have a GPU.
func poolsOf(gpu grant.GPU, pools []grant.Pool) (in []int) {
	for i, pool := range pools {
		if pool.Has(gpu) {
			in = append(in, i)
		}
	}
	return in
}
