package policy

import (
	"fmt"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// validPools checks the entries of pools.
func validPools(pools []grant.Pool) error {
	for i, pool := range pools {
		if len(pool.GPUs) == 0 {
			return fmt.Errorf("pool[%d].gpus: want indexes, ranges as 0-3, or UUIDs", i)
		}
		for _, name := range pool.GPUs {
			if _, _, err := grant.ParseRange(name); err != nil {
				return fmt.Errorf("pool[%d].gpus: %w", i, err)
			}
		}
	}
	return nil
}

// usablePools checks that each entry can name a GPU, and that no two pools name the same one.
// Whether an index and a UUID are one GPU is known from the inventory alone: package doctor looks
// at that.
func usablePools(pools []grant.Pool) error {
	for i, pool := range pools {
		for _, name := range pool.GPUs {
			if err := nameOfGPU(name); err != nil {
				return fmt.Errorf("pool[%d].gpus: %w", i, err)
			}
			if k, entry := poolWith(pools[:i], name); entry != "" {
				return fmt.Errorf("pool[%d].gpus: %q has a GPU of pool[%d] (%q): a GPU is in one pool",
					i, name, k, entry)
			}
		}
	}
	return nil
}

// nameOfGPU checks an entry of a pool.
func nameOfGPU(name string) error {
	first, _, err := grant.ParseRange(name)
	if err == nil && first < 0 && !strings.HasPrefix(name, "GPU-") && !strings.HasPrefix(name, "MIG-") {
		err = fmt.Errorf("%q is no index, no range as 0-3 and no UUID, as GPU-1234", name)
	}
	return err
}

// poolWith returns which of some pools has a GPU that name names, too, and by which entry; "":
// none.
func poolWith(pools []grant.Pool, name string) (i int, entry string) {
	first, last, _ := grant.ParseRange(name)
	for i, pool := range pools {
		for _, entry := range pool.GPUs {
			from, to, _ := grant.ParseRange(entry)
			if entry == name || first >= 0 && from >= 0 && first <= to && from <= last {
				return i, entry
			}
		}
	}
	return 0, ""
}
