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

// inCgroups finds out where the container's cgroup will be, and whether processes are there already, which would get its GPUs with it, or
// cgroups of others may be below it, which the grant would close. A cgroup that cannot be read from here is left out; nobody could tell later either when it is empty.
func (v *visit) inCgroups() {
	v.occupies = v.mayBeIn()
	if v.request.Cgroup == "" { // then they are guesses, by which nobody can tell that it has ended
		return
	}
	for _, path := range v.occupies {
		if isUnit(path) {
			continue
		}
		populated, err := v.Ledger.Populated(path)
		if err == nil {
			v.cgroups = append(v.cgroups, path)
		}
		v.crowded = v.crowded || populated || strings.HasSuffix(path, ".slice") || slices.Contains(parents, path) || v.Ledger.HasBelow(path)
	}
}

// parents are cgroups below which engines and the kubelet make those of containers, beside slices.
var parents = []string{"/", "/docker", "/buildkit", "/kubepods", "/kubepods/burstable", "/kubepods/besteffort", "/libpod_parent", "/crio",
	"/default", "/k8s.io", "/moby"}

// apart is a decision about a container that is to have a cgroup for itself: no other is created in the cgroup of one with a GPU, or
// below it. In it, it would have the GPU, or take it away by its own device rules; and there or below it would keep the grant in use.
//
// A container without a GPU first announces its create, unless its cgroup bears its own name, and then looks for bindings. One with a
// GPU is bound first, and then looks for announced creates. So of two at the same time at least one finds the other.
func (v visit) apart(d Decision) Decision {
	exempt := d.Kind == grant.Pass && admission.Exempt(d.pod, v.Policy)
	if d.Kind == grant.Refused || exempt || d.Kind == grant.Admit && (!d.Bound || v.Live != nil) {
		return d
	}
	var refused *Decision
	switch unit := v.takenUnit(); {
	case unit != "":
		refused = v.outsideCgroup(unit, d.pod)
	case d.Kind == grant.Pass && v.comesUpon(true), d.Bound && v.crowdedSince():
		refused = v.crowdedCgroup(d.pod)
	default:
		return d
	}
	if d.Bound {
		_ = v.Unbind(v.Container)
	}
	return *refused
}

// comesUpon reports whether the container would be in the cgroup of a bound one, or below it; or above it, where its device rules would
// take the GPU away. It also reports a create of the same unit at the same time: one of the two would be outside its cgroup.
func (v visit) comesUpon(announces bool) bool {
	if announces && !v.namesItself() {
		_ = v.Ledger.Announce(v.mayBeIn()) // if it cannot be written, nothing can be bound either
		if v.Live == nil && v.Ledger.Announced(v.units()) {
			return true
		}
	}
	if !v.Ledger.Occupies() {
		return false
	}
	if !announces { // it may not know the root
		v.AnyRoot = true
	}
	found := false
	_ = v.Ledger.View(func(tx *ledger.Tx) error {
		found = tx.Occupied(v.mayBeIn(), v.isOwn, v.mayBeBelow) || !v.namesItself() && tx.OccupiedBelow(v.mayBeIn(), v.isOwn)
		return nil
	})
	return found
}

// mayBeBelow reports whether the container may be created below a cgroup of a bound one. It may where that is only a guess, and where that
// does not bear the bound one's name and this one's bears its own: then engines may use it as a parent, and no grant closes a parent.
func (v visit) mayBeBelow(b grant.Binding, path string) bool {
	return !slices.Contains(b.Cgroups, path) || v.namesItself() && !bears(path, b.Container)
}

// crowdedSince reports whether another container came into the cgroup, or was about to, while this one was bound.
func (v visit) crowdedSince() bool {
	paths := v.mayBeIn()
	if v.Ledger.Announced(paths) {
		return true
	}
	for _, path := range paths {
		if populated, _ := v.Ledger.Populated(path); populated && !isUnit(path) {
			return v.request.Cgroup != ""
		}
	}
	return false
}

// takenUnit names the unit of systemd that the container cannot have: one that exists, or a slice, which takes no processes. runc up to
// 1.1.5 then leaves the container where the runtime is, on cgroup v2 without device rules. Newer ones fail, and stop the unit.
//
// A unit that has failed, as one whose container ran out of memory, stays until it is reset. It is reset, as newer runtimes do.
func (v visit) takenUnit() string {
	if v.Live != nil { // it has the unit
		return ""
	}
	for _, unit := range v.units() {
		slice := strings.HasSuffix(unit, ".slice")
		switch {
		case !slice && !host.UnitExists(unit), !v.finder.Cards(): // without a GPU it takes none
		case slice, v.Mode() != grant.Enforce, !host.ResetFailed(unit):
			return unit
		}
	}
	return ""
}

func (v visit) outsideCgroup(unit string, pod grant.Identity) *Decision {
	r := refusal(grant.RulesNotEnforced, "container %q would run outside its cgroup, where no device rule holds: the systemd unit %s is there already",
		v.Container.Name(), grant.Printable(unit))
	r.Hint, r.pod = "`systemctl status` shows whose it is; leave linux.cgroupsPath to the engine", pod
	return r
}

func (v visit) crowdedCgroup(pod grant.Identity) *Decision {
	r := refusal(grant.InjectionImpossible, "container %q would share the cgroup %s, and by that GPUs, with others",
		v.Container.Name(), grant.Printable(cmp.Or(v.request.Cgroup, v.Container.ID)))
	r.Hint = "engines give each container a cgroup of its own, with no other container's below it; leave linux.cgroupsPath to them, or wait until its processes have ended"
	r.pod = pod
	return r
}

// bears reports whether a cgroup's or unit's name, the last of a path, is made of a container's id, with or without what engines put before it.
func bears(path, id string) bool {
	name := strings.TrimSuffix(path[strings.LastIndexAny(path, "/:")+1:], ".scope")
	return name == id || strings.HasSuffix(name, "-"+id)
}

// namesItself reports whether the container's cgroup bears its own id, as engines name it. Such creates are nearly all, and are not
// announced: no other container has the cgroup, unless its caller chooses ids as well.
func (v visit) namesItself() bool {
	return v.request.Cgroup == "" || bears(v.request.Cgroup, v.Container.ID)
}

// cgroupsPaths are what linux.cgroupsPath says, or what runtimes take in place of none.
func (v visit) cgroupsPaths() []string {
	if v.request.Cgroup != "" {
		return []string{v.request.Cgroup}
	}
	return []string{v.Container.ID, ":runc:" + v.Container.ID, ":crun:" + v.Container.ID}
}

// units are the names that the container's unit may have to runc under systemd.
func (v visit) units() []string {
	_, units := systemdUnits(cmp.Or(v.request.Cgroup, ":runc:"+v.Container.ID))
	return units
}

// mayBeIn are all cgroups that a runtime may put the container in, by paths from the root of each hierarchy, and the units, by their names
// without a path.
func (v visit) mayBeIn() []string {
	var paths []string
	for _, path := range v.cgroupsPaths() {
		paths = append(paths, cgroupPaths(path)...)
	}
	if path := v.cgroupsPaths()[0]; !filepath.IsAbs(path) { // runc counts from its own cgroup, and lets no dots lead out of it
		for _, own := range v.ownCgroups() {
			path = filepath.Clean("/" + path)
			paths = append(paths, filepath.Join(own, path), filepath.Join(filepath.Dir(own), path))
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

func isUnit(path string) bool { return !strings.HasPrefix(path, "/") }

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

// cgroupPaths are what linux.cgroupsPath may mean, from the root of a hierarchy: a path, or to a runtime under systemd the units of
// systemdUnits. Relative paths are taken as crun takes them. A path that leads out of the root by dots makes crun fail.
func cgroupPaths(path string) []string {
	paths := []string{filepath.Clean("/" + path)}
	dir, units := systemdUnits(path)
	for _, unit := range units {
		paths = append(paths, filepath.Join(dir, unit), unit)
	}
	return paths
}

// systemdUnits are the units that "slice:prefix:name" means, with the slice's cgroup; none if it means none. systemd knows a unit by its name
// alone, whatever its slice. crun also takes "slice:name", and "slice" for both, and never makes a slice.
func systemdUnits(path string) (dir string, units []string) {
	slice, unit, both := strings.Cut(path, ":")
	if !both {
		unit = path
	}
	dir, isSlice := slicePath(slice)
	if !isSlice || strings.Contains(unit, "/") {
		return "", nil
	}
	units = []string{strings.Replace(unit, ":", "-", 1) + ".scope"}
	if _, name, three := strings.Cut(unit, ":"); three && strings.HasSuffix(name, ".slice") {
		units = append(units, name)
	}
	return dir, units
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
