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

// inCgroups finds out where the container's cgroup will be, and whether processes are there already: they would get its GPUs
// with it. What cannot be told from here is left out; nobody could tell later either when it is empty.
func (v *visit) inCgroups() {
	v.occupies = v.mayBeIn()
	if v.request.Cgroup == "" { // then they are guesses, by which nobody can tell that it has ended
		return
	}
	for _, path := range v.occupies {
		if populated, err := v.Ledger.Populated(path); err == nil {
			v.cgroups = append(v.cgroups, path)
			v.crowded = v.crowded || populated
		}
	}
}

// apart is a decision about a container that is to have a cgroup for itself: no other is created in the cgroup of one with a GPU, or
// below it. In it, it would have the GPU, or take it away by its own device rules; and there or below it would keep the grant in use.
//
// Who passes first says that it is being created, where its cgroup does not bear its own name, and looks for bindings then. Who is bound first
// has its binding, and looks for such creates then. So of two at once at least one finds the other.
func (v visit) apart(d Decision) Decision {
	switch {
	case d.Kind == grant.Pass && !admission.Exempt(d.pod, v.Policy):
		if v.comesUpon(true) {
			return *v.crowdedCgroup(d.pod)
		}
	case d.Bound && v.Live == nil && v.crowdedSince():
		_ = v.Unbind(v.Container)
		return *v.crowdedCgroup(d.pod)
	}
	return d
}

// comesUpon reports whether the container would be in the cgroup of a bound one, or below it; or above it, where its device rules would
// take the GPU away.
func (v visit) comesUpon(announces bool) bool {
	if announces && !v.namesItself() {
		_ = v.Ledger.Announce(v.mayBeIn()) // where it cannot be written, nothing can be bound either
	}
	if !v.Ledger.Occupies() {
		return false
	}
	own := v.isOwn
	if !announces { // who only asks knows no root
		own = func(b grant.Binding) bool { return b.Container == v.Container.ID }
	}
	found := false
	_ = v.Ledger.View(func(tx *ledger.Tx) error {
		found = tx.Occupied(v.mayBeIn(), own) || !v.namesItself() && tx.OccupiedBelow(v.mayBeIn(), own)
		return nil
	})
	return found
}

// crowdedSince reports whether another container came into the cgroup, or was about to, while this one was bound.
func (v visit) crowdedSince() bool {
	if v.Ledger.Announced(v.mayBeIn()) {
		return true
	}
	return v.request.Cgroup != "" && slices.ContainsFunc(v.mayBeIn(), func(path string) bool {
		populated, err := v.Ledger.Populated(path)
		return populated && err == nil
	})
}

func (v visit) crowdedCgroup(pod grant.Identity) *Decision {
	r := refusal(grant.InjectionImpossible, "container %q would share the cgroup %s, and by that GPUs, with processes of others",
		v.Container.Name(), grant.Printable(cmp.Or(v.request.Cgroup, v.Container.ID)))
	r.Hint = "engines give each container a cgroup of its own; leave linux.cgroupsPath to them, or wait until the processes have ended"
	r.pod = pod
	return r
}

// namePrefixes are what engines put before a container's id in the name of its cgroup.
var namePrefixes = []string{"", "crio-", "cri-containerd-", "docker-", "libpod-"}

// namesItself reports whether the container's cgroup bears its own id, as every engine has it: so it is nobody else's. Such creates are
// nearly all, and cost nothing more.
func (v visit) namesItself() bool {
	path := v.request.Cgroup
	name := path[strings.LastIndexAny(path, "/:")+1:]
	return path == "" || slices.ContainsFunc(namePrefixes, func(prefix string) bool { return name == prefix+v.Container.ID })
}

// mayBeIn are all cgroups that a runtime may put the container in, by paths from the root of each hierarchy.
func (v visit) mayBeIn() []string {
	path := v.request.Cgroup
	paths := cgroupPaths(path)
	relative := !filepath.IsAbs(path) && !strings.Contains(path, ":")
	if path == "" {
		path = v.Container.ID
		paths = append(cgroupPaths(path), cgroupPaths(":runc:" + path)[1:]...)
		paths = append(paths, cgroupPaths(":crun:" + path)[1:]...)
	}
	if relative { // runc counts from its own
		for _, own := range v.ownCgroups() {
			paths = append(paths, filepath.Join(own, path), filepath.Join(filepath.Dir(own), path))
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// ownCgroups are those of the calling process, which becomes the real runtime.
func (v visit) ownCgroups() (paths []string) {
	lines, _ := host.ReadFile(filepath.Join(v.Host.Proc, "self/cgroup"), maxCgroups) // without it: as absolute ones
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
