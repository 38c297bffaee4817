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

// AskingHook returns a hook of the spec that injects what its config.json asks for when the hook
// runs; "" without one.
func AskingHook(s Spec) string {
	if s.Hooks == nil {
		return ""
	}
	//lint:ignore SA1019 Prestart is deprecated and still what NVIDIA's toolkit writes.
	for _, hook := range slices.Concat(s.Hooks.Prestart, s.Hooks.CreateRuntime, s.Hooks.CreateContainer) {
		if slices.Contains(askingHooks, program(hook)) {
			return hook.Path
		}
	}
	return ""
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
