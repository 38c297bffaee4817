package request

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// controlSocket is what nvidia-cuda-mps-control listens on in its pipe directory. Whoever may connect reaches the GPUs of the
// daemon.
const controlSocket = "control"

// mpsFiles are what it keeps beside it. Others have sockets called control as well, as udev does, but none of these.
var mpsFiles = []string{"control_lock", "control_privileged", "nvidia-cuda-mps-control.pid"}

// mpsDefaults are where its pipe directory is when nobody says: of version 2, of version 3 under root, and of NVIDIA's
// device plugin.
var mpsDefaults = []string{"/tmp/nvidia-mps", "/run/nvidia-mps", "/run/nvidia/mps/nvidia.com/gpu/pipe"}

// rootsOwn is where only root makes directories: a socket at a usual place there is a daemon's, in whichever network
// namespace it listens.
const rootsOwn = "/run"

// localMounts are the mounts of the node itself. Names of sockets, which anybody on the node's network makes up, are looked
// at only there: any other mount can be a tenant's FUSE, whose server is dead.
var localMounts = []string{"/run", "/tmp", "/"}

// nodeWide are directories that node agents mount as a whole, for other reasons than what an MPS daemon keeps there
// (docs/adr/0009).
var nodeWide = []string{"/", "/run"}

// pipeVariable is where a client of MPS looks for its daemon.
const pipeVariable = "CUDA_MPS_PIPE_DIRECTORY"

// pipe is the pipe directory of a daemon that listens.
type pipe struct {
	dir    string // real where its files were seen, else as the daemon called it
	serves bool   // the daemon is the node's; else only a container's own mount may lead to one
}

// mpsBelow reports whether a place is the pipe directory of an MPS daemon of the node's that listens, its socket, or a directory
// that holds one. For those that agents mount as a whole it is only recorded, and so is what merely looks alike: any tenant can
// put such files on a volume that it shares with others, and listen there (docs/adr/0066).
//
// Of the file system this touches what the container's own mount leads to, and never another mount below: the source itself
// (which its runtime will touch too) and the names of MPS in it. So a dead file system of a tenant hangs the creates of
// containers that mount it, or a part of it, and of nobody else.
func (f *finder) mpsBelow(vector string, p place) bool {
	if slices.ContainsFunc(mpsDefaults, func(dir string) bool { return within(p.Path, dir) }) {
		return true // nobody else has a use for it, whether a daemon runs now or later
	}
	socket := p.exists && p.IsSocket() && filepath.Base(p.Path) == controlSocket
	top := p.Path
	switch {
	case socket:
		top = filepath.Dir(p.Path)
	case !p.exists || !p.IsDir():
		return false
	}
	_, direct, _ := pipeIn(top, "")
	if direct {
		f.seen.pipeLike[p.Path] = true
	}
	if !direct && (socket || f.isPrivate(top)) {
		return false
	}
	dir, serving := "", direct && f.node.Host.NodeListens(top, controlSocket)
	if !serving {
		dir, serving = f.daemonBelow(top, socket)
	}
	if dir == "" && direct {
		dir = top
	}
	switch {
	case dir == "":
	case !serving:
		f.note(vector + " has what may be an MPS daemon's socket in " + dir)
	case slices.Contains(nodeWide, p.Path):
		f.nodeRootBy(vector + " with the MPS daemon of " + dir)
		return false
	}
	return serving
}

// daemonBelow finds the pipe directory of a daemon at a directory, or below it as well: one that serves, or else one that may,
// because it lies on another mount.
func (f *finder) daemonBelow(top string, itself bool) (dir string, serving bool) {
	for _, d := range f.pipeDirectories() {
		if d.dir != top && (itself || !within(d.dir, top)) {
			continue
		}
		if d.serves {
			return d.dir, true
		}
		rest := below(d.dir, top)
		_, is, err := pipeIn(top, rest)
		if is && rest != "" && f.node.Host.NodeListens(top, filepath.Join(rest, controlSocket)) {
			return d.dir, true
		}
		if is || errors.Is(err, unix.EXDEV) {
			dir = d.dir
		}
	}
	return dir, false
}

// below is the rest of a path after a directory that it is within.
//
//go:noinline
func below(path, dir string) string {
	return strings.TrimPrefix(path[len(strings.TrimSuffix(dir, "/")):], "/")
}

// pipeIn looks for a pipe directory below a mounted one, without leaving its mount, and gives its real path. At a usual place
// the socket is enough.
func pipeIn(top, rest string) (dir string, is bool, err error) {
	t, err := host.LookNear(top, filepath.Join(rest, controlSocket))
	if err != nil || !t.IsSocket() {
		return "", false, err
	}
	return filepath.Dir(t.Path), slices.Contains(mpsDefaults, filepath.Join(top, rest)) || slices.ContainsFunc(mpsFiles, func(name string) bool {
		_, err := host.LookNear(top, filepath.Join(rest, name))
		return err == nil
	}), nil
}

// pipeDirectories are those of the daemons that this node shows: wherever a process on its network listens on a socket of the
// name, and at the usual places of root. They are asked for once, and only for a container that mounts a directory of the
// host's.
func (f *finder) pipeDirectories() []pipe {
	if f.seen.pipes != nil {
		return f.seen.pipes
	}
	f.seen.pipes = []pipe{}
	sockets, _ := host.ReadFile(filepath.Join(f.node.Host.Proc, "net/unix"), host.MaxSockets) // without it: the usual places
	candidates := listening(sockets)
	for _, dir := range mpsDefaults {
		if within(dir, rootsOwn) {
			candidates = append(candidates, dir)
		}
	}
	for _, dir := range candidates {
		top := localMounts[slices.IndexFunc(localMounts, func(mount string) bool { return within(dir, mount) })]
		if f.ofOurDaemon(dir) {
			top = dir
		}
		real, is, err := pipeIn(top, below(dir, top))
		switch {
		case is:
			serves := f.isRoots(dir) || f.node.Host.NodeListens(top, filepath.Join(below(dir, top), controlSocket))
			f.seen.pipes = append(f.seen.pipes, pipe{dir: real, serves: serves})
		case errors.Is(err, unix.EXDEV):
			f.seen.pipes = append(f.seen.pipes, pipe{dir: dir})
		}
	}
	return f.seen.pipes
}

// isRoots reports whether only root makes and mounts anything at a pipe directory. A daemon that listens there is the node's,
// whatever namespaces it runs in and whatever user it runs as.
func (f *finder) isRoots(dir string) bool {
	return slices.Contains(mpsDefaults, dir) && within(dir, rootsOwn) || f.ofOurDaemon(dir)
}

// ofOurDaemon reports whether a directory would be the pipe directory of an MPS daemon of gpuledgerd's, which is on a mount of its own
// (docs/adr/0049). Nobody but root makes or mounts anything there. The daemon was told the run directory as it is configured, through
// links; /proc/net/unix has what it was told, and with /run for /var/run.
func (f *finder) ofOurDaemon(dir string) bool {
	if filepath.Base(dir) != "pipe" {
		return false
	}
	above := filepath.Dir(filepath.Dir(dir))
	return above == grant.MPSDir(f.node.Policy.RunDir, "") || above == grant.MPSDir(f.real(f.node.Policy.RunDir), "")
}

// listening lists the directories of the control sockets in /proc/net/unix that listen, by the names they were bound to.
func listening(sockets []byte) []string {
	var dirs []string
	for _, s := range host.Listening(sockets, controlSocket) {
		path := s.Path
		if within(path, "/var/run") {
			path = path[len("/var"):]
		}
		dirs = append(dirs, filepath.Dir(path))
	}
	return dirs
}

// pipeDirectory follows the container's own CUDA_MPS_PIPE_DIRECTORY through its mounts to the host, also below a mount that agents
// have as a whole. Whoever names a dead file system hangs its own create.
func (f *finder) pipeDirectory() {
	value := f.env[pipeVariable]
	if value == "" {
		return
	}
	value = filepath.Clean("/" + value)
	by, longest := -1, -1
	for i, m := range f.spec.Mounts {
		if destination := filepath.Clean("/" + m.Destination); IsBind(m) && len(destination) >= longest && within(value, destination) {
			by, longest = i, len(destination)
		}
	}
	if by < 0 {
		return
	}
	rest := strings.TrimPrefix(value[min(longest, len(value)):], "/")
	for _, source := range f.sources(by) {
		p := f.look(source.Path + "/" + rest)
		if !p.exists || !p.IsDir() || f.found("mount:"+f.spec.Mounts[by].Destination, grant.GPUSocket) {
			continue
		}
		dir, is, _ := pipeIn(p.Path, "")
		if is && (f.isRoots(p.Path) || f.node.Host.NodeListens(p.Path, controlSocket)) {
			f.hit(grant.Hit{Vector: "env:" + pipeVariable, Value: f.env[pipeVariable], Code: grant.GPUSocket, Cover: grant.CoverNever})
			return
		}
		if is {
			f.note("env:" + pipeVariable + " leads to what may be an MPS daemon's socket in " + dir)
		}
	}
}

// found reports whether something was found already.
func (f *finder) found(vector string, code grant.Code) bool {
	return slices.ContainsFunc(f.request.Hits, func(h grant.Hit) bool { return h.Vector == vector && h.Code == code })
}
