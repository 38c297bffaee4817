package request

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/hostpath"
)

// pipeVariable is where a client of MPS looks for its daemon.
const pipeVariable = "CUDA_MPS_PIPE_DIRECTORY"

// pipeDirectory follows the container's own CUDA_MPS_PIPE_DIRECTORY through its mounts to the host,
// also below a mount that agents have as a whole. A container that names a dead file system blocks
// its own create.
func pipeDirectory(f *containerFacts, found *vectorResult) {
	value := f.env[pipeVariable]
	if value == "" {
		return
	}
	value = filepath.Clean("/" + value)
	by, longest := -1, -1
	for i, m := range f.spec.Mounts {
		if destination := filepath.Clean("/" + m.Destination); IsBind(m) && len(destination) >= longest &&
			hostpath.Within(value, destination) {
			by, longest = i, len(destination)
		}
	}
	if by < 0 {
		return
	}
	rest := strings.TrimPrefix(value[min(longest, len(value)):], "/")
	for _, source := range f.sources.of(by) {
		p := f.paths.Resolve(source.Path + "/" + rest)
		if !p.Exists || !p.IsDir() || found.has("mount:"+f.spec.Mounts[by].Destination, grant.GPUSocket) {
			continue
		}
		dir, is, _ := pipeIn(p.Path, "")
		if is && (f.pipes.isRoots(p.Path) || f.pipes.host.NodeListens(p.Path, controlSocket)) {
			found.hit(grant.Hit{Vector: "env:" + pipeVariable, Value: f.env[pipeVariable],
				Code: grant.GPUSocket, Cover: grant.CoverNever})
			return
		}
		if is {
			found.note("env:" + pipeVariable + " leads to what may be an MPS daemon's socket in " + dir)
		}
	}
}

// has reports whether something was found already.
func (found *vectorResult) has(vector string, code grant.Code) bool {
	return slices.ContainsFunc(found.hits,
		func(h grant.Hit) bool { return h.Vector == vector && h.Code == code })
}
