package request

import (
	"errors"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/hostpath"
)

// controlSocket is what nvidia-cuda-mps-control listens on in its pipe directory. A process that
// may connect reaches the GPUs of the daemon.
const controlSocket = "control"

// mpsFiles are what the daemon keeps beside it. Other programs have sockets called control, too, as
// udev does, but none of these files.
var mpsFiles = []string{"control_lock", "control_privileged", "nvidia-cuda-mps-control.pid"}

// mpsDefaults are the default pipe directories: of version 2, of version 3 under root, and of
// NVIDIA's device plugin.
var mpsDefaults = []string{"/tmp/nvidia-mps", "/run/nvidia-mps", "/run/nvidia/mps/nvidia.com/gpu/pipe"}

// rootsOwn is where only root makes directories. A socket in a default directory there is a
// daemon's, in whichever network namespace it listens.
const rootsOwn = "/run"

// localMounts are the mounts of the node itself. Any program on the node's network can choose the
// name of a socket, so these names are looked at only here: another mount can be a tenant's FUSE
// file system whose server is dead.
var localMounts = []string{"/run", "/tmp", "/"}

// nodeWide are directories that node agents mount as a whole, for other reasons than what an MPS
// daemon keeps there (docs/adr/0009).
var nodeWide = []string{"/", "/run"}

// pipe is the pipe directory of a daemon that listens.
type pipe struct {
	dir    string // the real path if its files were found, else the path that the daemon uses
	serves bool   // the daemon is the node's; else only a container's own mount may lead to one
}

// pipes find the pipe directories of MPS daemons. They keep what they found.
type pipes struct {
	host   host.Host
	runDir string
	paths  *hostpath.Paths
	seen   *Seen
	likes  map[string]bool // directories that were looked at, and whether each looks like a pipe directory
}

// bringsDaemon reports whether a place is the pipe directory of an MPS daemon of the node's that
// listens, its socket, or a directory that holds one. Of directories that agents mount as a whole
// this is only recorded. So is what merely looks like a pipe directory: any tenant can put such
// files on a volume that it shares with others, and listen there (docs/adr/0066).
func bringsDaemon(f *containerFacts, vector string, p hostpath.Place, found *vectorResult) bool {
	if isUsualPipe(p.Path) {
		return true // nothing else uses it, whether a daemon runs now or later
	}
	dir, serves := f.pipes.in(p, f.bundle)
	switch {
	case dir == "":
	case !serves:
		found.note(vector + " has what may be an MPS daemon's socket in " + dir)
	case slices.Contains(nodeWide, p.Path):
		found.root(vector + " with the MPS daemon of " + dir)
		return false
	}
	return serves
}

// isUsualPipe reports whether a path is in a default pipe directory.
func isUsualPipe(path string) bool {
	return slices.ContainsFunc(mpsDefaults, func(dir string) bool { return hostpath.Within(path, dir) })
}

// in returns the pipe directory that a container with a bundle gets by a place, and whether a
// daemon of the node's serves there; "" if there is none.
//
// Of the file system it touches what the container's own mount leads to, and no other mount below:
// the source itself, which the container's runtime touches, too, and the names of MPS in it. So a
// dead file system of a tenant blocks the creates of containers that mount it or a part of it, and
// no others.
func (ps *pipes) in(p hostpath.Place, bundle string) (dir string, serves bool) {
	socket := p.Exists && p.IsSocket() && filepath.Base(p.Path) == controlSocket
	top := p.Path
	switch {
	case socket:
		top = filepath.Dir(p.Path)
	case !p.Exists || !p.IsDir():
		return "", false
	}
	direct := ps.like(top)
	if !direct && (socket || hostpath.IsPrivate(top, bundle)) {
		return "", false
	}
	if direct && ps.host.NodeListens(top, controlSocket) {
		return top, true
	}
	if dir, serves = ps.daemonBelow(top, socket); dir == "" && direct {
		dir = top
	}
	return dir, serves
}

// like reports whether a directory looks like a pipe directory.
func (ps *pipes) like(dir string) bool {
	is, known := ps.likes[dir]
	if !known {
		_, is, _ = pipeIn(dir, "")
		if ps.likes == nil {
			ps.likes = map[string]bool{}
		}
		ps.likes[dir] = is
	}
	return is
}

// looksLikeOne reports whether a place looks like a pipe directory and is not known as one by its
// path.
func (ps *pipes) looksLikeOne(p hostpath.Place) bool {
	return p.Exists && p.IsDir() && !isUsualPipe(p.Path) && !ps.paths.InLedger(p.Path) && ps.like(p.Path)
}

// daemonBelow finds the pipe directory of a daemon at a directory, or below it, too: one that
// serves, or else one that may, because it is on another mount.
func (ps *pipes) daemonBelow(top string, itself bool) (dir string, serves bool) {
	at := host.OpenTop(top)
	defer at.Close()
	for _, d := range ps.directoriesFor(top) {
		if d.dir != top && (itself || !hostpath.Within(d.dir, top)) {
			continue
		}
		if d.serves {
			return d.dir, true
		}
		if ps.seen.walks++; ps.seen.walks > maxNames {
			ps.tooMany(maxNames)
			break
		}
		rest := hostpath.Below(d.dir, top)
		is := false
		_, err := at.Status(filepath.Join(rest, controlSocket))
		if err == nil {
			_, is, err = pipeIn(top, rest)
		}
		if is && rest != "" && ps.host.NodeListens(top, filepath.Join(rest, controlSocket)) {
			return d.dir, true
		}
		if is || errors.Is(err, unix.EXDEV) {
			dir = d.dir
		}
	}
	return dir, false
}

// pipeIn looks for a pipe directory below a mounted one, without leaving its mount, and returns its
// real path. At a default path the socket is enough.
func pipeIn(top, rest string) (dir string, is bool, err error) {
	t, err := host.ResolveWithin(top, filepath.Join(rest, controlSocket))
	if err != nil || !t.IsSocket() {
		return "", false, err
	}
	return filepath.Dir(t.Path), slices.Contains(mpsDefaults, filepath.Join(top, rest)) ||
		slices.ContainsFunc(mpsFiles, func(name string) bool {
			_, err := host.ResolveWithin(top, filepath.Join(rest, name))
			return err == nil
		}), nil
}

// directories returns the pipe directories of the daemons that this node shows: wherever a process
// on its network listens on a socket of the name, and at root's default paths. They are looked up
// once, and only for a container that mounts a directory of the host.
func (ps *pipes) directories() []pipe {
	if ps.seen.daemons != nil {
		return ps.seen.daemons
	}
	ps.seen.daemons = []pipe{}
	ps.look(ps.candidates())
	return ps.seen.daemons
}

// directoriesFor returns them with those that are looked at only for a mount of one directory.
func (ps *pipes) directoriesFor(top string) []pipe {
	ps.directories()
	ps.look(ps.candidatesBelow(top))
	return ps.seen.daemons
}

// look adds those of the candidates that are pipe directories.
func (ps *pipes) look(candidates []string) {
	daemons := ps.seen.daemons
	if ps.seen.at == nil {
		ps.seen.at = map[string]int{}
	}
	for _, dir := range candidates {
		top, rest := ps.walkOf(dir)
		real, is, err := pipeIn(top, rest)
		switch {
		case is:
			serves := ps.isRoots(dir)
			if known, is := ps.seen.at[real]; is { // a link leads to it: the kernel is asked once for all
				daemons[known].serves = daemons[known].serves || serves
				continue
			}
			serves = serves || ps.host.NodeListens(top, filepath.Join(rest, controlSocket))
			ps.seen.at[real] = len(daemons)
			daemons = append(daemons, pipe{dir: real, serves: serves})
		case errors.Is(err, unix.EXDEV):
			daemons = append(daemons, pipe{dir: dir})
		}
	}
	ps.seen.daemons = daemons
}

// isRoots reports whether only root makes and mounts files at a pipe directory. A daemon that
// listens there is the node's, whatever namespaces it runs in and whatever user it runs as.
func (ps *pipes) isRoots(dir string) bool {
	return slices.Contains(mpsDefaults, dir) && hostpath.Within(dir, rootsOwn) || ps.ofOurDaemon(dir)
}

// ofOurDaemon reports whether a directory would be the pipe directory of an MPS daemon of
// gpuledgerd, which is on a mount of its own (docs/adr/0049). Only root makes or mounts files
// there. The daemon got the run directory as it is configured, through links; /proc/net/unix has
// the path that it got, and with /run for /var/run.
func (ps *pipes) ofOurDaemon(dir string) bool {
	if filepath.Base(dir) != "pipe" {
		return false
	}
	above := filepath.Dir(filepath.Dir(dir))
	return above == grant.MPSDir(ps.runDir, "") || above == grant.MPSDir(ps.paths.Real(ps.runDir), "")
}
