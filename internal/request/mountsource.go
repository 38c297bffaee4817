package request

import (
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/hostpath"
)

// A bind mount's source may lie in the container's own root file system. There the mounts before it
// decide what the runtime finds when it opens the source. crun opens sources before it mounts
// anything, so what is there now counts, too. No engine writes such a source, but it is legal, and
// runc's own tests do.

// maxBefore bounds how many mounts before such a source are looked at, and how many places are
// found for it.
const maxBefore = 100

// sources looks up which places of the node the paths in a spec may lead to, and keeps what it
// found.
type sources struct {
	mounts   []specs.Mount
	bundle   string // as the caller wrote it; "" if it is unknown
	root     string // the path of the container's root file system; "" without one
	paths    *hostpath.Paths
	opensAny bool // a device rule lets GPUs be opened that no exact rule names

	covered  map[string]bool // if its root is the node's: directories of the node that the mounts cover
	covering int             // how many mounts are in covered

	// by the mount's number: its places in the container's own root behind other mounts, and the
	// paths at which it may be mounted in that root, nil if they are unknown
	behind  map[int][]hostpath.Place
	spotted map[int][]string
}

// of returns the places of the node that a bind mount may bring. A place is Shifting if it is
// unknown what is there when the runtime opens it. One in the container's own root behind other
// mounts is Shifting as soon as a rule lets GPUs be opened that no exact rule names.
func (s *sources) of(i int) []hostpath.Place {
	if places, known := s.behind[i]; known {
		return places
	}
	source := s.mounts[i].Source
	if !filepath.IsAbs(source) && s.bundle == "" {
		return unbundled(source)
	}
	var places []hostpath.Place
	for _, path := range s.readings(source) {
		p := s.paths.Resolve(path)
		if s.backFromMounts(i, path) {
			p.Shifting = true
			places = append(places, p)
			continue
		}
		if !s.madeByMounts(i, path, p.Path) {
			places = append(places, p)
			continue
		}
		covering, told := s.behindMounts(i, path)
		p.Shifting = p.Shifting || !told || s.opensAny
		places = append(append(places, p), covering...)
		if s.behind == nil {
			s.behind = map[int][]hostpath.Place{}
		}
		s.behind[i] = places
	}
	return places
}

// named returns the places of the node that a path in a mount of another kind than a bind mount may
// lead to.
func (s *sources) named(path string) (places []hostpath.Place) {
	if !filepath.IsAbs(path) && s.bundle == "" {
		return unbundled(path)
	}
	for _, path := range s.walks(path) {
		places = append(places, s.paths.Resolve(path))
	}
	return places
}

// walks returns the paths that a runtime may take the path of an option or a device for: those of a
// bind mount's source (crun), or one in the root file system (runc).
func (s *sources) walks(path string) []string {
	if filepath.IsAbs(path) {
		return []string{path}
	}
	return append(s.readings(path), s.root+"/"+path)
}

// readings returns the paths that a runtime may take a bind mount's source for. Both take a
// relative one from the bundle: runc after it shortened it by its text, crun as the kernel walks.
func (s *sources) readings(source string) []string {
	if filepath.IsAbs(source) {
		return []string{source}
	}
	return slices.Compact([]string{filepath.Join(s.bundle, source), s.bundle + "/" + source})
}

// unbundled returns where a relative source may lead if the bundle is unknown, as it is to NRI.
// What lies in a bundle is the engine's and reaches nothing. A path that leads out of it, or into
// the root file system that engines have there, may lead anywhere.
func unbundled(source string) []hostpath.Place {
	if path := filepath.Clean(source); filepath.IsLocal(path) && !hostpath.Within(path, "rootfs") {
		return nil
	}
	return []hostpath.Place{{ResolvedFile: host.ResolvedFile{Path: filepath.Clean(source), Shifting: true}}}
}

// madeByMounts reports whether a path of the host, which leads to a real one, is in the container's
// own root behind other mounts.
func (s *sources) madeByMounts(before int, path, real string) bool {
	if before == 0 || s.root == "" {
		return false
	}
	if root := s.paths.Real(s.root); root != "/" {
		return hostpath.Within(real, root) || hostpath.Within(filepath.Clean(path), filepath.Clean(s.root))
	}
	if s.covered == nil {
		s.covered = map[string]bool{}
	}
	for ; s.covering < before; s.covering++ {
		if m := &s.mounts[s.covering]; !slices.Contains(kernelTypes, m.Type) {
			s.covered[top(s.paths.Real("/"+m.Destination), maxDepth)] = true
		}
	}
	for depth := 1; depth <= maxDepth; depth++ {
		if s.covered[top(real, depth)] {
			return true
		}
	}
	return false
}

// backFromMounts reports whether a path leads back up from behind other mounts in the container's
// own root. A link that they bring may be on the way, and then the path leads up from another
// directory.
func (s *sources) backFromMounts(before int, path string) bool {
	names := strings.Split(path, "/")
	for n, name := range names {
		if name != ".." {
			continue
		}
		way := strings.Join(names[:n], "/")
		if way == "" {
			continue
		}
		if p := s.paths.Resolve(way); p.Path != s.paths.Real(s.root) && s.madeByMounts(before, way, p.Path) {
			return true
		}
	}
	return false
}

// maxDepth bounds how many parents of a source are looked up, so that many long paths take no more
// time than their length. A mount that lies deeper counts there.
const maxDepth = 16

// top returns the beginning of a path, of so many names.
func top(path string, names int) string {
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			if names--; names == 0 {
				return path[:i]
			}
		}
	}
	return path
}

// behindMounts returns the places at which a path of the host into the container's own root may be
// behind the mounts before a certain one. False says that they are unknown.
func (s *sources) behindMounts(before int, path string) (places []hostpath.Place, told bool) {
	if before > maxBefore || slices.Contains(strings.Split(path, "/"), "..") {
		return nil, false
	}
	path = filepath.Clean(path)
	for _, root := range []string{filepath.Clean(s.root), s.paths.Real(s.root)} {
		if hostpath.Within(path, root) {
			return s.inRoot(before, hostpath.Join("/", hostpath.Below(path, root)), isEmpty)
		}
	}
	return nil, false // a link leads there
}

// inRoot returns the places at which a path in the container's root may be: in the root itself, and
// in the source of each bind mount before a certain one that lies over it, whether or not another
// mount covers that again. The places are known only if no link is on the way in any of them: a
// link leads to a path among the host's mounts, and among the container's. They are unknown behind
// a mount of another kind, unless nothing says that it brings nothing that matters.
func (s *sources) inRoot(before int, path string, nothing func(specs.Mount) bool) (
	places []hostpath.Place, told bool) {
	there := func(dir, rest string) bool {
		p := s.paths.Resolve(hostpath.Join(dir, rest))
		places = append(places, p)
		return p.Err == nil && !p.Shifting && p.Path == hostpath.Join(dir, rest) && len(places) <= maxBefore
	}
	if !there(s.paths.Real(s.root), path[1:]) {
		return nil, false
	}
	for j, m := range s.mounts[:before] {
		spots, told := s.spots(j)
		if !told {
			return nil, false
		}
		for _, spot := range spots {
			switch {
			case !hostpath.Within(path, spot), !IsBind(m) && nothing(m):
				continue
			case !IsBind(m):
				return nil, false
			}
			for _, source := range s.of(j) {
				if source.Shifting || !there(source.Path, hostpath.Below(path, spot)) {
					return nil, false
				}
			}
		}
	}
	return places, true
}

// isEmpty reports whether a mount's file system holds nothing when it is mounted, not even a link.
func isEmpty(m specs.Mount) bool {
	return slices.Contains([]string{"tmpfs", "ramfs", "devpts", "mqueue", "hugetlbfs"}, m.Type) &&
		!slices.Contains(m.Options, "tmpcopyup")
}

// isClosed reports whether no link in a mount's file system leads out of it.
func isClosed(m specs.Mount) bool {
	return slices.Contains(kernelTypes, m.Type) && m.Type != "proc" &&
		!slices.Contains(m.Options, "tmpcopyup")
}

// spots returns where a mount may lie in the container's root. A destination may begin with the
// root's own path, which runc leaves out then (libcontainer/utils, StripRoot). False says that the
// places are unknown.
func (s *sources) spots(j int) (paths []string, told bool) {
	if paths, known := s.spotted[j]; known {
		return paths, paths != nil
	}
	if s.spotted == nil {
		s.spotted = map[int][]string{}
	}
	s.spotted[j] = nil
	destination := "/" + s.mounts[j].Destination
	if slices.Contains(strings.Split(destination, "/"), "..") {
		return nil, false
	}
	paths = []string{filepath.Clean(destination)}
	if root := s.paths.Real(s.root); root != "/" && hostpath.Within(paths[0], root) {
		paths = append(paths, hostpath.Join("/", hostpath.Below(paths[0], root)))
	}
	for _, path := range paths {
		if _, told := s.inRoot(j, path, isClosed); !told {
			return nil, false
		}
	}
	s.spotted[j] = paths
	return paths, true
}
