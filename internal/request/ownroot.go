package request

import (
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/host"
)

// A bind mount's source may lie in the container's own root file system. There the mounts before it decide what the runtime finds when it
// comes to it; crun opens sources before it mounts anything, so what is there now counts as well. No engine writes such a source, but it is
// legal, and runc's own tests do.

// maxBefore bounds how many mounts before such a source are looked at, and how many places are found for it.
const maxBefore = 100

// sources are the places of the node that a bind mount may bring along. One is Shifting where nobody can tell what is there when the
// runtime comes to it; and in the container's own root behind other mounts, as soon as a rule lets GPUs be opened that no exact rule names.
func (f *finder) sources(i int) []place {
	if places, known := f.behind[i]; known {
		return places
	}
	source := f.spec.Mounts[i].Source
	if !filepath.IsAbs(source) && f.caller.Container.Bundle == "" {
		return unbundled(source)
	}
	var places []place
	for _, path := range f.sourcePaths(source) {
		p := f.look(path)
		if f.backFromMounts(i, path) {
			p.Shifting = true
			places = append(places, p)
			continue
		}
		if !f.madeByMounts(i, path, p.Path) {
			places = append(places, p)
			continue
		}
		covering, told := f.behindMounts(i, path)
		p.Shifting = p.Shifting || !told || f.opensAny()
		places = append(append(places, p), covering...)
		f.behind[i] = places
	}
	return places
}

// unbundled is for a relative source where the bundle is not known, as to NRI. What lies in a bundle is the engine's and reaches nothing; a
// path that leads out of it, or into the root file system that engines have there, may lead anywhere.
func unbundled(source string) []place {
	if path := filepath.Clean(source); filepath.IsLocal(path) && !within(path, "rootfs") {
		return nil
	}
	return []place{{Target: host.Target{Path: filepath.Clean(source), Shifting: true}}}
}

// madeByMounts reports whether a path of the host, which leads to a real one, is in the container's own root behind other mounts.
func (f *finder) madeByMounts(before int, path, real string) bool {
	if before == 0 || f.root() == "" {
		return false
	}
	if root := f.real(f.root()); root != "/" {
		return within(real, root) || within(filepath.Clean(path), filepath.Clean(f.root()))
	}
	for ; f.covering < before; f.covering++ {
		if m := f.spec.Mounts[f.covering]; !slices.Contains(kernelTypes, m.Type) {
			f.covered[top(f.real("/"+m.Destination), maxDepth)] = true
		}
	}
	for depth := 1; depth <= maxDepth; depth++ {
		if f.covered[top(real, depth)] {
			return true
		}
	}
	return false
}

// backFromMounts reports whether a path goes up again from behind other mounts in the container's own root: a link that they bring
// may be on the way, and then it leads up from elsewhere.
func (f *finder) backFromMounts(before int, path string) bool {
	names := strings.Split(path, "/")
	for n, name := range names {
		if name != ".." {
			continue
		}
		way := strings.Join(names[:n], "/")
		if way == "" {
			continue
		}
		if p := f.look(way); p.Path != f.real(f.root()) && f.madeByMounts(before, way, p.Path) {
			return true
		}
	}
	return false
}

// maxDepth bounds how many parents of a source are asked about, so that many long paths cost no more than their length. A
// mount that lies deeper counts there.
const maxDepth = 16

// top is a path's beginning, of so many names.
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

// behindMounts gives the places at which a path of the host into the container's own root may be behind the mounts before a certain one.
// False: that cannot be told.
func (f *finder) behindMounts(before int, path string) (places []place, told bool) {
	if before > maxBefore || slices.Contains(strings.Split(path, "/"), "..") {
		return nil, false
	}
	path = filepath.Clean(path)
	for _, root := range []string{filepath.Clean(f.root()), f.real(f.root())} {
		if within(path, root) {
			return f.inRoot(before, join("/", below(path, root)), isEmpty)
		}
	}
	return nil, false // a link leads there
}

// inRoot gives the places at which a path in the container's root may be: in the root itself, and in the source of each bind mount before a
// certain one that lies over it, whether or not another one covers that again. It can be told only where no link is on the way in any of
// them: a link leads to where the host's mounts are, and the container's. Of mounts of other kinds it takes those for nothing that a
// function says.
func (f *finder) inRoot(before int, path string, nothing func(specs.Mount) bool) (places []place, told bool) {
	there := func(dir, rest string) bool {
		p := f.look(join(dir, rest))
		places = append(places, p)
		return p.err == nil && !p.Shifting && p.Path == join(dir, rest) && len(places) <= maxBefore
	}
	if !there(f.real(f.root()), path[1:]) {
		return nil, false
	}
	for j, m := range f.spec.Mounts[:before] {
		spots, told := f.spots(j)
		if !told {
			return nil, false
		}
		for _, spot := range spots {
			switch {
			case !within(path, spot), !IsBind(m) && nothing(m):
				continue
			case !IsBind(m):
				return nil, false
			}
			for _, source := range f.sources(j) {
				if source.Shifting || !there(source.Path, below(path, spot)) {
					return nil, false
				}
			}
		}
	}
	return places, true
}

// isEmpty reports whether a mount's file system holds nothing when it is mounted, not even a link.
func isEmpty(m specs.Mount) bool {
	return slices.Contains([]string{"tmpfs", "ramfs", "devpts", "mqueue", "hugetlbfs"}, m.Type) && !slices.Contains(m.Options, "tmpcopyup")
}

// isClosed reports whether no link in a mount's file system leads out of it.
func isClosed(m specs.Mount) bool {
	return slices.Contains(kernelTypes, m.Type) && m.Type != "proc" && !slices.Contains(m.Options, "tmpcopyup")
}

// spots are where a mount may lie in the container's root. A destination may begin with the root's own path, which runc leaves out then
// (libcontainer/utils, StripRoot).
func (f *finder) spots(j int) (paths []string, told bool) {
	if paths, known := f.spotted[j]; known {
		return paths, paths != nil
	}
	f.spotted[j] = nil
	destination := "/" + f.spec.Mounts[j].Destination
	if slices.Contains(strings.Split(destination, "/"), "..") {
		return nil, false
	}
	paths = []string{filepath.Clean(destination)}
	if root := f.real(f.root()); root != "/" && within(paths[0], root) {
		paths = append(paths, join("/", below(paths[0], root)))
	}
	for _, path := range paths {
		if _, told := f.inRoot(j, path, isClosed); !told {
			return nil, false
		}
	}
	f.spotted[j] = paths
	return paths, true
}
