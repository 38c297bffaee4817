package request

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// mpsFiles are what nvidia-cuda-mps-control keeps in its pipe directory. Whoever reaches them reaches the GPUs of the daemon.
var mpsFiles = []string{"control", "control_lock", "control_privileged", "nvidia-cuda-mps-control.pid"}

// mpsDefaults are where its pipe directory is when nobody says: of version 2, of version 3 under root, and of NVIDIA's
// device plugin.
var mpsDefaults = []string{"/tmp/nvidia-mps", "/run/nvidia-mps", "/run/nvidia/mps/nvidia.com/gpu/pipe"}

// nodeWide are directories that node agents mount as a whole, for other reasons than what an MPS daemon keeps there
// (docs/adr/0009).
var nodeWide = []string{"/", "/run"}

// pipeVariable is where a client of MPS looks for its daemon.
const pipeVariable = "CUDA_MPS_PIPE_DIRECTORY"

// mpsBelow reports whether a place is the pipe directory of an MPS daemon, its socket, or a directory that holds one. For
// those that agents mount as a whole it is only recorded.
func (f *finder) mpsBelow(vector string, p place) bool {
	if slices.ContainsFunc(mpsDefaults, func(dir string) bool { return within(p.Path, dir) }) {
		return true // nobody else has a use for it, whether a daemon runs now or later
	}
	if !p.exists {
		return false
	}
	if !p.IsDir() {
		return filepath.Base(p.Path) == mpsFiles[0] && servesMPS(filepath.Dir(p.Path))
	}
	if servesMPS(p.Path) {
		return true
	}
	if f.isPrivate(p.Path) {
		return false
	}
	i := slices.IndexFunc(f.pipeDirectories(), func(dir string) bool { return within(dir, p.Path) })
	if i >= 0 && slices.Contains(nodeWide, p.Path) {
		f.nodeRootBy(vector + " with the MPS daemon of " + f.pipes[i])
		return false
	}
	return i >= 0
}

// servesMPS reports whether a directory is the pipe directory of an MPS daemon. Others have sockets called control as well,
// as udev does, but none of the files beside it.
func servesMPS(dir string) bool {
	has := func(name string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return err == nil
	}
	return has(mpsFiles[0]) && slices.ContainsFunc(mpsFiles[1:], has)
}

// maxSockets bounds what is read of the kernel's list of sockets, in bytes. A busy node's has some hundred kilobytes.
const maxSockets = 32 << 20

// pipeDirectories are those of the daemons that this node shows: at the usual places, and wherever a process listens on a
// socket of the name. They are asked for once, and only for a container that mounts a directory of the host's.
func (f *finder) pipeDirectories() []string {
	if f.pipes != nil {
		return f.pipes
	}
	f.pipes = []string{}
	candidates := slices.Clone(mpsDefaults)
	sockets, _ := host.ReadFile(filepath.Join(f.node.Host.Proc, "net/unix"), maxSockets) // without it: the usual places
	for line := range bytes.Lines(sockets) {
		if i := bytes.IndexByte(line, '/'); i >= 0 && bytes.HasSuffix(line, []byte("/"+mpsFiles[0]+"\n")) {
			candidates = append(candidates, filepath.Dir(string(bytes.TrimSuffix(line[i:], []byte("\n")))))
		}
	}
	for i, dir := range candidates {
		if servesMPS(dir) || i < len(mpsDefaults) && f.look(dir+"/"+mpsFiles[0]).exists {
			f.pipes = append(f.pipes, f.real(dir))
		}
	}
	return f.pipes
}

// pipeDirectory follows the container's own CUDA_MPS_PIPE_DIRECTORY through its mounts to the host.
func (f *finder) pipeDirectory() {
	value := f.env[pipeVariable]
	if value == "" {
		return
	}
	value = filepath.Clean("/" + value)
	var by *specs.Mount
	longest := -1
	for i := range f.spec.Mounts {
		m := &f.spec.Mounts[i]
		if destination := filepath.Clean("/" + m.Destination); isBind(*m) && len(destination) >= longest && within(value, destination) {
			by, longest = m, len(destination)
		}
	}
	if by == nil {
		return
	}
	rest := strings.TrimPrefix(value[min(longest, len(value)):], "/")
	for _, path := range f.walks(by.Source) {
		p := f.look(path + "/" + rest)
		if p.exists && p.IsDir() && servesMPS(p.Path) && !f.found("mount:"+by.Destination, grant.GPUSocket) {
			f.hit(grant.Hit{Vector: "env:" + pipeVariable, Value: f.env[pipeVariable], Code: grant.GPUSocket, Cover: grant.CoverNever})
			return
		}
	}
}

// found reports whether something was found already.
func (f *finder) found(vector string, code grant.Code) bool {
	return slices.ContainsFunc(f.request.Hits, func(h grant.Hit) bool { return h.Vector == vector && h.Code == code })
}
