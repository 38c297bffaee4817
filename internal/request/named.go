package request

import (
	"path/filepath"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// namedGPUs reads the GPUs that a container names to its engine, as an allocation: by Docker's
// --gpus, which Compose's reservations of devices become, too, or by their nodes, which are what
// the CDI names of other vendors bring. Where the policy lets containers ask, this asks.
func namedGPUs(f *containerFacts, hits []grant.Hit) (a grant.Allocation, named bool) {
	may, engine := &f.node.Policy.Asks, f.caller.Container.Engine
	if engine != grant.Docker && engine != grant.Podman || !slices.Contains(may.Engines, engine) {
		return a, false
	}
	a = grant.Allocation{Own: true, Env: true, Asks: true, Named: true}
	for _, h := range hits {
		switch {
		case h.Vector == "env:"+visibleDevices && h.Cover == grant.CoverGPUs && engine == grant.Docker &&
			dockersHook(f.spec):
			a.GPUs, a.Source = h.GPUs, "engine:--gpus"
			return a, true
		case h.Code == grant.GPUDeviceNode && h.Node.Class == grant.ClassGPU &&
			slices.Contains(may.Modes, grant.Exclusive):
			a.Minors = append(a.Minors, h.Node.Minor)
			if a.Source == "" {
				a.Source = h.Vector
			}
		}
	}
	return a, a.Minors != nil
}

// dockersHook reports whether Docker has put NVIDIA's hook into the spec, as it does for --gpus.
// It has appended NVIDIA_VISIBLE_DEVICES then, so the value is not the image's (moby,
// daemon/devices_nvidia_linux.go).
func dockersHook(s Spec) bool {
	if s.Hooks == nil {
		return false
	}
	//lint:ignore SA1019 Prestart is deprecated and what Docker writes.
	for _, h := range s.Hooks.Prestart {
		if filepath.Base(h.Path) == "nvidia-container-runtime-hook" {
			return true
		}
	}
	return false
}
