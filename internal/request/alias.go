package request

import (
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// A path says what a thing of the node is only until somebody mounts the thing at another one too. The kubelet does so for each subPath and
// each local volume, and Docker for a volume with o=bind: the source that the runtime gets is then a place among the container's own, and
// shows anything of the node. docs/adr/0018 says what is looked up, when, and what it costs.

// alias is another place of the node at which a mount's source is.
type alias struct {
	place
	inside bool // it is somewhere in the source: as a source of its own, that would be a directory above the alias
}

// aliases are the other places of a mount's source, but for those among what engines make for containers: nothing there governs.
// An error says that they cannot be told.
func (f *finder) aliases(p place, m specs.Mount) ([]alias, error) {
	inside := recursive(m) && p.exists && p.IsDir() && mayHoldVolumes(p.Path)
	asked := aliasQuestion{p.Path, inside}
	if known, found := f.seen.aliases[asked]; found {
		return known, nil
	}
	var found []alias
	if inside || f.mayBeElsewhere(p) {
		mounts, err := f.readMounts()
		if err != nil {
			return nil, err
		}
		found = mounts.aliases(p, inside)
	}
	f.seen.aliases[asked] = found
	return found, nil
}

// anyAlias reports whether something is so of a source at one of its other places.
func (f *finder) anyAlias(p place, m specs.Mount, is func(alias) bool) bool {
	found, _ := f.aliases(p, m) // where they cannot be told, nodeRoot says so
	return slices.ContainsFunc(found, func(a alias) bool { return !a.inside && is(a) })
}

// governsElsewhere is governsNode at a source's other places. Where they cannot be told, it may.
func (f *finder) governsElsewhere(p place, m specs.Mount) bool {
	found, err := f.aliases(p, m)
	if err != nil {
		f.note("mount:" + m.Destination + " may be another place of the node: " + err.Error())
		return true
	}
	return slices.ContainsFunc(found, func(a alias) bool {
		return f.makesRoot(a.place, m) || a.inside && f.isOurs(a.Path) && f.lets(a.Path)
	})
}

// aliasQuestion is a source, and whether what is mounted below it was asked for as well.
type aliasQuestion struct {
	path   string
	inside bool
}

// recursive reports whether a mount brings along what is mounted below its source.
func recursive(m specs.Mount) bool {
	return slices.ContainsFunc(m.Options, func(option string) bool { return option == "rbind" || strings.HasPrefix(option, "ridmap") })
}

// volumeDirs are where the kubelet and engines mount volumes, each so many names below.
var volumeDirs = []guard{{path: "/var/lib/kubelet/pods", names: 4}, {path: "/var/lib/docker/volumes", names: 2}, {path: "/var/lib/containers/storage/volumes", names: 2}}

// mayHoldVolumes reports whether volumes are mounted below a directory. Below others only the administrator mounts, and nobody looks: every
// container with a directory of the node would pay for it. (Below "/" they add nothing, since that has their other places too.)
func mayHoldVolumes(path string) bool {
	return path != "/" && slices.ContainsFunc(volumeDirs, func(v guard) bool {
		return within(v.path, path) || within(path, v.path) && strings.Count(below(path, v.path), "/")+1 < v.names
	})
}

// anchors are the directories in which what governs the node or a GPU lies, and which may be file systems of their own.
var anchors = []string{"/", "/run", "/usr", "/etc", "/tmp", "/var", "/var/lib", "/var/lib/kubelet", "/var/lib/containerd", "/var/lib/docker", "/var/lib/containers", "/proc", "/sys"}

// position is a file system, by its device, and a mount of it. A mount of 0 is none that is known.
type position struct{ device, mount uint64 }

// mayBeElsewhere reports whether a source can also be at a place that governs. Nearly always the list of mounts, which is long, need not be
// asked: what the kubelet or an engine keeps of the container is in the same mount as their directory of all containers; any other source
// is in one of the node's few mounts; and a volume that is a file system of its own is on a device where nothing else is.
func (f *finder) mayBeElsewhere(p place) bool {
	t := p.Target
	if !p.exists { // then the directory says it in which it would be
		t, _, _ = f.parting(p.Path)
	}
	if i := slices.IndexFunc(privateDirs, func(dir string) bool { return within(p.Path, dir) }); i >= 0 && t.Mount != 0 && f.position(privateDirs[i]).mount == t.Mount {
		return false
	}
	nodes := false // it is in one of the node's mounts
	for _, at := range f.anchored() {
		switch {
		case at.mount == t.Mount && t.Mount != 0:
			nodes = true
		case at.device == t.Dev && t.Dev != 0:
			return true
		}
	}
	// a socket's own name is lost where it alone is mounted, and an MPS daemon's directory may be the whole of a file system
	return !nodes && (t.IsSocket() || f.seen.pipeLike[p.Path] || hasManyDevices(t))
}

// hasManyDevices reports whether the device of a place says too little: each subvolume of btrfs has one of its own, and so has each
// hierarchy of cgroups of version 1.
func hasManyDevices(t host.Target) bool {
	var st unix.Statfs_t
	if unix.Major(t.Dev) != 0 || unix.Statfs(t.Path, &st) != nil {
		return false
	}
	return st.Type == unix.BTRFS_SUPER_MAGIC || st.Type == unix.CGROUP_SUPER_MAGIC
}

// position asks for a directory's.
func (f *finder) position(dir string) position {
	at, known := f.seen.positions[dir]
	if !known {
		at.device, at.mount = host.MountOf(dir)
		f.seen.positions[dir] = at
	}
	return at
}

// anchored are the positions of the anchors and of what this node has beside, each once.
func (f *finder) anchored() []position {
	if f.seen.anchored == nil {
		h, own := f.node.Host, f.node.Policy
		for _, dir := range slices.Concat(anchors, []string{own.StateDir, own.RunDir, h.Dev, filepath.Join(h.Sys, "fs/cgroup")}) {
			if at := f.position(dir); at != (position{}) && !slices.Contains(f.seen.anchored, at) {
				f.seen.anchored = append(f.seen.anchored, at)
			}
		}
	}
	return f.seen.anchored
}

// readMounts asks for the list of mounts, once.
func (f *finder) readMounts() (mountTable, error) {
	if f.seen.mounts == nil {
		list, err := f.node.Host.Mounts()
		if err != nil {
			return nil, err
		}
		f.seen.mounts = list
	}
	return f.seen.mounts, nil
}

// mountTable is the list of mounts.
type mountTable []host.Mount

// aliases are the other places of a source, and of what is mounted inside if that counts.
func (t mountTable) aliases(p place, inside bool) []alias {
	own := t.at(p.Path)
	if own < 0 {
		return nil
	}
	found := t.others(own, join(t[own].Root, below(p.Path, t[own].Point)), p)
	for i, m := range t {
		if !inside || m.Point == p.Path || !within(m.Point, p.Path) {
			continue
		}
		for _, a := range t.others(i, m.Root, place{exists: true}) {
			if a.inside = true; !within(a.Path, p.Path) && t.at(m.Point) == i { // where it lies in the source, it is known by its path
				found = append(found, a)
			}
		}
	}
	return found
}

// others are the places outside of one mount at which other mounts show the same part of its file system.
func (t mountTable) others(own int, part string, p place) (found []alias) {
	for i, m := range t {
		if i == own || m.Device != t[own].Device || isPrivatePlace(m.Point) {
			continue
		}
		a := alias{place: p}
		switch {
		case within(part, m.Root):
			a.Path = join(m.Point, below(part, m.Root))
		case within(m.Root, part):
			a.Path, a.inside = m.Point, true
		default:
			continue
		}
		if t.at(a.Path) == i {
			found = append(found, a)
		}
	}
	return found
}

// at is the mount in which a real path ends, -1 where it cannot be told: from the root on, whatever is mounted on the way. A mount that
// another one covers is in the list as well.
func (t mountTable) at(path string) int {
	here := slices.IndexFunc(t, func(m host.Mount) bool {
		return m.Point == "/" && !slices.ContainsFunc(t, func(above host.Mount) bool { return above.ID == m.Parent && above.ID != m.ID })
	})
	for range t { // as many steps as there are mounts, at most
		next := -1
		for i, m := range t {
			if here >= 0 && i != here && m.Parent == t[here].ID && within(path, m.Point) && (next < 0 || len(m.Point) < len(t[next].Point)) {
				next = i
			}
		}
		if next < 0 {
			break
		}
		here = next
	}
	return here
}

// join is filepath.Join of a clean path and the clean rest of one.
func join(dir, rest string) string {
	if rest == "" {
		return dir
	}
	return strings.TrimSuffix(dir, "/") + "/" + rest
}
