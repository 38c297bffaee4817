package cdi

import (
	"fmt"
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Asks returns the spec with the sizes for which containers may ask: each a variable, as if the
// user had written it. It is nil if no engine's containers may ask.
func (f Files) Asks() (*cdispec.Spec, error) {
	may := f.Node.Policy.Asks
	if len(may.Engines) == 0 {
		return nil, nil
	}
	inv, problem := f.Node.Inventory()
	if problem != nil {
		return nil, problem.Refusal()
	}
	spec := &cdispec.Spec{Kind: grant.CDIKindAsk, ContainerEdits: cdispec.ContainerEdits{
		Env:   []string{"NVIDIA_VISIBLE_DEVICES=void"},
		Hooks: []*cdispec.Hook{f.hook()},
	}}
	add := func(name, variable string) {
		spec.Devices = append(spec.Devices, cdispec.Device{Name: name,
			ContainerEdits: cdispec.ContainerEdits{Env: []string{variable}}})
	}
	largest := largestGPU(inv)
	most := largest
	if may.MaxMemory > 0 {
		most = min(most, grant.Bytes(may.MaxMemory))
	}
	if may.Mode != grant.Exclusive {
		for size := grant.GiB; size <= most; size *= 2 {
			add(size.String(), "GPULEDGER_MEMORY="+size.String())
		}
		for _, part := range []grant.Bytes{2, 3, 4, 8} {
			if size := largest / part / grant.MiB * grant.MiB; 0 < size && size <= most {
				add(fmt.Sprintf("1of%d", part), "GPULEDGER_MEMORY="+size.String())
			}
		}
	}
	if slices.Contains(may.Modes, grant.Exclusive) && may.MaxMemory == 0 {
		add("whole", "GPULEDGER_MODE=exclusive")
	}
	if len(spec.Devices) == 0 {
		return nil, nil
	}
	var err error
	spec.Version, err = cdispec.MinimumRequiredVersion(spec)
	return spec, err
}

// largestGPU returns the memory of the node's largest GPU that is not partitioned.
func largestGPU(inv grant.Inventory) (largest grant.Bytes) {
	for _, g := range inv.GPUs {
		if len(g.MIG) == 0 {
			largest = max(largest, g.Memory)
		}
	}
	return largest
}
