package request

import (
	"path/filepath"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// injectorHooks are the programs that NVIDIA's toolkit and its predecessors put into a spec as hooks.
var injectorHooks = []string{"nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-container-cli", "nvidia-ctk", "nvidia-cdi-hook"}

func (f *finder) hooks() {
	h := f.spec.Hooks
	if h == nil {
		return
	}
	//lint:ignore SA1019 Prestart is deprecated and still what NVIDIA's toolkit writes.
	for _, stage := range [][]specs.Hook{h.Prestart, h.CreateRuntime, h.CreateContainer, h.StartContainer, h.Poststart, h.Poststop} {
		for _, hook := range stage {
			if !slices.Contains(injectorHooks, filepath.Base(hook.Path)) {
				continue
			}
			f.hit(grant.Hit{Vector: "hook:" + hook.Path, Value: lastOf(hook.Args), Code: grant.GPUHook, Cover: grant.CoverDrop,
				Removal: grant.Removal{Kind: grant.RemoveHook, Name: hook.Path}})
		}
	}
}

func lastOf(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[len(args)-1]
}
