package request

import (
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// driverCapabilities reads which parts of the driver the container wants. If it does not say,
// NVIDIA's default counts. Unknown words ask for nothing.
func driverCapabilities(f *containerFacts) (parts []grant.Capability, compat32 bool) {
	value := f.env["NVIDIA_DRIVER_CAPABILITIES"]
	if value == "" {
		value = "compute,utility"
	}
	all := []grant.Capability{grant.Compute, grant.Utility, grant.Graphics, grant.Video, grant.Display,
		grant.NGX}
	for _, word := range list(value) {
		switch c := grant.Capability(word); {
		case word == allDevices:
			return all, true
		case word == "compat32":
			compat32 = true
		case slices.Contains(all, c) && !slices.Contains(parts, c):
			parts = append(parts, c)
		}
	}
	return parts, compat32
}
