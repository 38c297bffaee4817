package node

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// cgroups are where a container's processes will be.
type cgroups struct {
	known    []string // in which it can be told later whether processes are left
	possible []string // all that a runtime may choose
	crowded  bool     // processes are there already: they would get its GPUs with it
}

// withCgroups adds to the facts where the container's cgroup will be. A cgroup of which nothing can be told from here is
// not known: whether it is empty could not be told later either.
func withCgroups(n *Node, f facts) facts {
	c := cgroups{possible: mayBeIn(n, f)}
	if f.request.Cgroup != "" { // else they are guesses, by which it cannot be told that the container has ended
		for _, path := range c.possible {
			if populated, err := n.Ledger.Populated(path); err == nil {
				c.known = append(c.known, path)
				c.crowded = c.crowded || populated
			}
		}
	}
	f.cgroups = c
	return f
}

// alone is a decision about a container that is to have a cgroup for itself: no other is created in the cgroup of one with a GPU, or
// below it. In it, it would have the GPU, or take it away by its own device rules; and there or below it would keep the grant in use.
//
// Who passes first says that it is being created, where its cgroup does not bear its own name, and looks for bindings then. Who is bound first
// has its binding, and looks for such creates then. So of two at once at least one finds the other.
func alone(n *Node, f facts, d Decision) Decision {
	switch {
	case d.Kind == grant.Pass && !admission.Exempt(d.pod, n.Policy):
		if sharesCgroup(n, f, true) {
			return *crowdedCgroup(f, d.pod)
		}
	case d.Bound && f.Live == nil && sharedSince(n, f):
		_ = n.Unbind(f.Container)
		return *crowdedCgroup(f, d.pod)
	}
	return d
}

// sharesCgroup reports whether the container would be in the cgroup of a bound one, or below it; or above it, where its device rules would
// take the GPU away.
func sharesCgroup(n *Node, f facts, announces bool) bool {
	if announces && !f.namesItself() {
		_ = n.Ledger.Announce(mayBeIn(n, f)) // where it cannot be written, nothing can be bound either
	}
	if !n.Ledger.Occupies() {
		return false
	}
	own := f.isOwn
	if !announces { // who only asks knows no root
		own = func(b grant.Binding) bool { return b.Container == f.Container.ID }
	}
	found := false
	_ = n.Ledger.View(func(tx *ledger.Tx) error {
		found = tx.Occupied(mayBeIn(n, f), own) || !f.namesItself() && tx.OccupiedBelow(mayBeIn(n, f), own)
		return nil
	})
	return found
}

// sharedSince reports whether another container came into the cgroup, or was about to, while this one was bound.
func sharedSince(n *Node, f facts) bool {
	if n.Ledger.Announced(mayBeIn(n, f)) {
		return true
	}
	return f.request.Cgroup != "" && slices.ContainsFunc(mayBeIn(n, f), func(path string) bool {
		populated, err := n.Ledger.Populated(path)
		return populated && err == nil
	})
}

func crowdedCgroup(f facts, pod grant.Identity) *Decision {
	r := refusal(grant.InjectionImpossible, "container %q would share the cgroup %s, and by that GPUs, with processes of others",
		f.Container.Name(), grant.Printable(cmp.Or(f.request.Cgroup, f.Container.ID)))
	r.Hint = "engines give each container a cgroup of its own; leave linux.cgroupsPath to them, or wait until the processes have ended"
	r.pod = pod
	return r
}

// namePrefixes are what engines put before a container's id in the name of its cgroup.
var namePrefixes = []string{"", "crio-", "cri-containerd-", "docker-", "libpod-"}

// namesItself reports whether the container's cgroup bears its own id, as every engine has it: so it is nobody else's. Such creates are
// nearly all, and cost nothing more.
func (f facts) namesItself() bool {
	path := f.request.Cgroup
	name := path[strings.LastIndexAny(path, "/:")+1:]
	return path == "" || slices.ContainsFunc(namePrefixes, func(prefix string) bool { return name == prefix+f.Container.ID })
}

// mayBeIn are all cgroups that a runtime may put the container in, by paths from the root of each hierarchy.
func mayBeIn(n *Node, f facts) []string {
	path := f.request.Cgroup
	paths := cgroupPaths(path)
	relative := !filepath.IsAbs(path) && !strings.Contains(path, ":")
	if path == "" {
		path = f.Container.ID
		paths = append(cgroupPaths(path), cgroupPaths(":runc:" + path)[1:]...)
		paths = append(paths, cgroupPaths(":crun:" + path)[1:]...)
	}
	if relative { // runc counts from its own
		for _, own := range ownCgroups(n.Host.Proc) {
			paths = append(paths, filepath.Join(own, path), filepath.Join(filepath.Dir(own), path))
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// ownCgroups are those of the calling process, which becomes the real runtime.
func ownCgroups(proc string) (paths []string) {
	lines, _ := host.ReadFile(filepath.Join(proc, "self/cgroup"), maxCgroups) // without it: as absolute ones
	for line := range strings.Lines(string(lines)) {
		if words := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3); len(words) == 3 {
			paths = append(paths, words[2])
		}
	}
	return paths
}

// maxCgroups bounds what is read of /proc/self/cgroup, in bytes.
const maxCgroups = 1 << 20

// cgroupPaths are the places that linux.cgroupsPath may mean, from the root of a hierarchy: a path, or to a runtime under
// systemd "slice:prefix:name". Relative paths are taken as crun takes them.
func cgroupPaths(path string) []string {
	if path == "" {
		return nil
	}
	paths := []string{filepath.Clean("/" + path)}
	slice, unit, isUnit := strings.Cut(path, ":")
	dir, isSlice := slicePath(slice)
	if !isUnit || !isSlice {
		return paths
	}
	for _, name := range unitNames(unit) {
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths
}

// unitNames are the units of "prefix:name". Where there is no prefix, runc leaves out the hyphen and crun does not.
func unitNames(unit string) []string {
	prefix, name, both := strings.Cut(unit, ":")
	switch {
	case strings.Contains(unit, "/"):
		return nil
	case !both:
		return []string{unit + ".scope"}
	case strings.HasSuffix(name, ".slice"):
		return []string{name}
	case prefix == "":
		return []string{name + ".scope", "-" + name + ".scope"}
	}
	return []string{prefix + "-" + name + ".scope"}
}

// slicePath is a slice's cgroup: that of a-b.slice is /a.slice/a-b.slice (systemd.slice(5)). Without a name it is the system's.
func slicePath(slice string) (string, bool) {
	if slice == "" {
		slice = "system.slice"
	}
	name, isSlice := strings.CutSuffix(slice, ".slice")
	if !isSlice || strings.Contains(name, "/") {
		return "", false
	}
	dir, above := "/", ""
	if name == "-" { // the root slice
		return dir, true
	}
	parts := strings.Split(name, "-")
	if slices.Contains(parts, "") {
		return "", false
	}
	for _, part := range parts {
		above += part
		dir = filepath.Join(dir, above+".slice")
		above += "-"
	}
	return dir, true
}
