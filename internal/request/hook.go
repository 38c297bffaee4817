package request

import (
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// injectorHooks are the programs that NVIDIA's toolkit puts into a spec as hooks for the GPUs that
// it injects.
var injectorHooks = []string{"nvidia-container-cli", "nvidia-ctk", "nvidia-cdi-hook"}

// askingHooks are those that a hooks directory puts into every container of a node. They do nothing
// unless the spec asks by environment, mount or annotation, which other vectors find
// (docs/adr/0008). A grant drops them all the same.
var askingHooks = []string{"nvidia-container-runtime-hook", "nvidia-container-toolkit"}

// hooks finds the hooks of NVIDIA's injectors.
func hooks(f *containerFacts) (found vectorResult) {
	h := f.spec.Hooks
	if h == nil {
		return vectorResult{}
	}
	//lint:ignore SA1019 Prestart is deprecated and still what NVIDIA's toolkit writes.
	for _, stage := range [][]specs.Hook{h.Prestart, h.CreateRuntime, h.CreateContainer, h.StartContainer,
		h.Poststart, h.Poststop} {
		for _, hook := range stage {
			switch {
			case slices.Contains(injectorHooks, program(hook)):
				found.hit(grant.Hit{Vector: "hook:" + hook.Path, Value: lastOf(hook.Args),
					Code: grant.GPUHook, Cover: grant.CoverDrop,
					Removal: grant.Removal{Kind: grant.RemoveHook, Name: hook.Path}})
			case slices.Contains(askingHooks, program(hook)):
				found.drop(grant.RemoveHook, hook.Path)
			}
		}
	}
	return found
}

// AskingHook returns the path of a hook of the spec that injects what its config.json asks for when
// the hook runs; "" without one. acts reports whether it does anything for this container. It does
// nothing (nvidia-container-toolkit 1.0 to 1.20, cmd/nvidia-container-runtime-hook) where neither
// NVIDIA_VISIBLE_DEVICES nor another variable of names asks, the image is not one from before that
// variable, and no mount names a device. "none" asks: it gives the driver's files.
func AskingHook(s Spec, names []string) (hook string, acts bool) {
	if s.Hooks == nil {
		return "", false
	}
	//lint:ignore SA1019 Prestart is deprecated and still what NVIDIA's toolkit writes.
	for _, stage := range [][]specs.Hook{s.Hooks.Prestart, s.Hooks.CreateRuntime, s.Hooks.CreateContainer,
		s.Hooks.StartContainer, s.Hooks.Poststart, s.Hooks.Poststop} {
		for _, h := range stage {
			if IsAskingHook(h.Path) {
				return h.Path, asks(s, names)
			}
		}
	}
	return "", false
}

// IsAskingHook reports whether a hook's program injects only what its config.json asks for.
func IsAskingHook(path string) bool {
	return slices.Contains(askingHooks, program(specs.Hook{Path: path}))
}

// asks reports whether such a hook could find a request in a spec. Of an odd environment it takes
// the worse: whether a reader takes the first or the last entry of a name does not matter.
func asks(s Spec, names []string) bool {
	if s.Process == nil {
		return true
	}
	var set, version, required, unrequired bool
	for _, entry := range s.Process.Env {
		name, value, pair := strings.Cut(entry, "=")
		switch isList := name == visibleDevices || slices.Contains(names, name); {
		case !pair, isList && value != "" && value != voidDevices:
			return true
		case name == visibleDevices:
			set = true
		case name == "CUDA_VERSION":
			version = version || value != ""
		case name == "NVIDIA_REQUIRE_CUDA":
			required, unrequired = true, unrequired || value == ""
		}
	}
	old := version && (!required || unrequired) && !set // such an image gets all GPUs
	return old || slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool {
		return strings.Contains(m.Destination, "nvidia-container-devices")
	})
}

// program returns the name of what a hook runs. NVIDIA's operator installs its programs behind
// scripts of their names.
func program(h specs.Hook) string { return strings.TrimSuffix(filepath.Base(h.Path), ".real") }

func lastOf(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[len(args)-1]
}
