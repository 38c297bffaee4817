package hostpath

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Access is how a container reaches a file of the node.
type Access struct {
	// Rooted says that what the node's root owns is open to the container's user. Otherwise the
	// user can use the files of its groups.
	Rooted bool
	GID    uint32
	Groups []uint32

	// OwnUsers says that it has a user namespace that is not the node's. It cannot trace processes
	// outside.
	OwnUsers bool
	Bundle   string // its own bundle, as a clean path; what lies there governs nothing

	Write bool // it can write to the file system that the file is on
	// WriteBelow says that it also gets the file systems that are mounted below the file, and can
	// write to them. For a mount that is read-only at its top alone, Write is false and WriteBelow
	// true.
	WriteBelow bool
}

// Governs reports whether a place is a guard or holds one that the container can use: the ledger's
// directories and configuration, our programs and the runtimes, or what the engines use.
func (s *Paths) Governs(p Place, a *Access) bool {
	for _, dir := range s.ledgerDirs() {
		if dir = s.Real(dir); Within(dir, p.Path) && s.Lets(dir, a) {
			return true
		}
	}
	own := inBundle(p.Path, a.Bundle)
	if !own && s.touchesOne(stores, &p, a) {
		return true
	}
	if own || isPrivatePlace(p.Path) {
		return false
	}
	if a.writable() && isProgram(p.Path) && s.writes(&p, p.Path, a) && s.Lets(p.Path, a) {
		return true
	}
	if s.touchesOne(guards, &p, a) || s.touchesOne(s.ownGuards(), &p, a) {
		return true
	}
	return p.IsDir() && slices.ContainsFunc(guards, func(g guard) bool {
		if !g.moves {
			return false
		}
		g.path = s.Real(g.path)
		return s.touches(&g, &p, a)
	})
}

// GovernsByName reports whether a path is of a guard or of a program, without a look at what is
// there. It is for a file that is open to be written to, and for the name of a socket.
func (s *Paths) GovernsByName(path string, a *Access) bool {
	writing := *a
	writing.Write = true
	p := Place{ResolvedFile: host.ResolvedFile{Path: path}}
	return s.touchesOne(guards, &p, &writing) || isProgram(path) && s.Lets(path, a)
}

// MakesRoot reports whether a container that gets a file of the node by a bind mount is root on the
// node by it: by a guard, a writable cgroup file system, or processes that are not its own.
func (s *Paths) MakesRoot(p Place, a *Access) bool {
	return s.Governs(p, a) || a.Rooted && s.bringsCgroups(p.Path, a) || !a.OwnUsers && bringsProcesses(p)
}

// bringsProcesses reports whether a bind mount brings /proc or the directory of a process. That
// gives what a shared pid namespace gives, also where the mount is read-only: /proc/PID/root leads
// to the process's own mounts (docs/adr/0011).
func bringsProcesses(p Place) bool {
	below, found := strings.CutPrefix(p.Path, "/proc/")
	return Within("/proc", p.Path) || found && p.IsDir() && '1' <= below[0] && below[0] <= '9'
}

// Lets reports whether the container's user can use a file: as root, or as a member of the group
// that it belongs to, as with Docker's socket.
func (s *Paths) Lets(path string, a *Access) bool {
	if a.Rooted {
		return true
	}
	p := s.Resolve(path)
	return p.Exists && (p.GID == a.GID || slices.Contains(a.Groups, p.GID))
}

// bringsCgroups reports whether a bind mount brings a writable cgroup file system. On version 1 the
// top is a tmpfs, and every controller is mounted below it.
func (s *Paths) bringsCgroups(source string, a *Access) bool {
	cgroup := filepath.Join(s.node.Host.Sys, "fs/cgroup")
	switch {
	case source == cgroup: // version 2 has cgroup.controllers there, and a tmpfs does not
		return a.Write || a.WriteBelow && !s.Resolve(cgroup+"/cgroup.controllers").Exists
	case Within(cgroup, source):
		return a.WriteBelow
	}
	return a.Write && Within(source, cgroup)
}

// ownGuards returns this node's other guards: the files of its configuration, our program, and the
// runtimes, by the paths where they really are.
func (s *Paths) ownGuards() []guard {
	if s.own != nil {
		return s.own
	}
	s.own = []guard{}
	for _, path := range append(s.node.Policy.Runtime.Programs(), s.node.Config,
		filepath.Join(filepath.Dir(s.node.Config), grant.ClusterFile), s.node.Program) {
		if !filepath.IsAbs(path) {
			// as the wrapper finds the real runtime; if it is absent, or path is empty,
			// there is nothing to guard
			path, _ = exec.LookPath(path)
		}
		if !filepath.IsAbs(path) {
			continue
		}
		for _, path := range slices.Compact([]string{path, s.Real(path)}) {
			s.own = append(s.own, guard{path: path, write: true})
		}
	}
	return s.own
}

// touchesOne reports whether a container reaches one of several guards by a place. Each mount of
// each container is compared with some eighty.
func (s *Paths) touchesOne(guards []guard, p *Place, a *Access) bool {
	for i := range guards {
		if s.touches(&guards[i], p, a) {
			return true
		}
	}
	return false
}

// touches reports whether a container reaches a guard by a place.
func (s *Paths) touches(g *guard, p *Place, a *Access) bool {
	switch {
	case g.write && !a.writable():
		return false
	case host.Within(g.path, p.Path):
	case g.below && host.Within(p.Path, g.path):
	case g.names > 0 && Within(p.Path, g.path) && strings.Count(Below(p.Path, g.path), "/") < g.names:
	default:
		return false
	}
	return (!g.write || s.writes(p, g.path, a)) && s.Lets(g.path, a)
}

// writable reports whether the container can write to anything that it gets.
func (a *Access) writable() bool { return a.Write || a.WriteBelow }

// writes reports whether a container that gets a place can write to a path. Of a recursive mount
// "ro" makes only the top read-only, and file systems below stay as they are (mount_setattr(2)).
func (s *Paths) writes(p *Place, path string, a *Access) bool {
	if a.Write || !a.WriteBelow {
		return a.Write
	}
	below := s.Resolve(path)
	return below.Exists && Within(below.Path, p.Path) && below.Dev != p.Dev
}
