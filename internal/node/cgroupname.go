package node

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/host"
)

// Where a container's cgroup may be, by linux.cgroupsPath alone. A path begins with "/" and counts
// from the root of each hierarchy; anything else is the name of a systemd unit.

// possibleCgroups lists all cgroups that a runtime may put a container of this id in, and the names
// of its units. proc is where procfs is mounted.
func possibleCgroups(cgroupsPath, id, proc string) []string {
	given := []string{cgroupsPath}
	if cgroupsPath == "" { // what runtimes use then
		given = []string{id, ":runc:" + id, ":crun:" + id}
	}
	var paths []string
	for _, path := range given {
		paths = append(paths, cgroupPaths(path)...)
	}
	if !filepath.IsAbs(given[0]) { // runc counts from its own cgroup, and lets no dots lead out of it
		path := filepath.Clean("/" + given[0])
		for _, own := range ownCgroups(proc) {
			paths = append(paths, filepath.Join(own, path), filepath.Join(filepath.Dir(own), path))
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

func isUnit(path string) bool { return !strings.HasPrefix(path, "/") }

// possibleUnits lists the names that the container's unit may have to runc under systemd.
func possibleUnits(cgroupsPath, id string) []string {
	_, units := systemdUnits(cmp.Or(cgroupsPath, ":runc:"+id))
	return units
}

// cgroupPaths lists what linux.cgroupsPath may mean, from the root of a hierarchy: a path, or to a
// runtime under systemd the units of systemdUnits. Relative paths are taken as crun takes them. A
// path that leads out of the root by dots makes crun fail.
func cgroupPaths(path string) []string {
	paths := []string{filepath.Clean("/" + path)}
	dir, units := systemdUnits(path)
	for _, unit := range units {
		paths = append(paths, filepath.Join(dir, unit), unit)
	}
	return paths
}

// systemdUnits lists the units that "slice:prefix:name" may mean, with the slice's cgroup. systemd
// knows a unit by its name alone, whatever its slice. crun also takes "slice:name", and "slice" for
// both, and never makes a slice.
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

// slicePath gives a slice's cgroup: that of a-b.slice is /a.slice/a-b.slice (systemd.slice(5)).
// Without a name it is that of the system's slice.
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

// ownCgroups lists those of the calling process, which becomes the real runtime. If they cannot be
// read, relative paths count as absolute ones.
func ownCgroups(proc string) (paths []string) {
	lines, _ := host.ReadFile(filepath.Join(proc, "self/cgroup"), maxCgroups)
	for l := range host.CgroupLines(lines) {
		paths = append(paths, l.Path)
	}
	return paths
}

// maxCgroups bounds what is read of /proc/self/cgroup, in bytes.
const maxCgroups = 1 << 20

// bears reports whether the name of a cgroup or unit, the last of a path, ends with a container's
// id.
func bears(path, id string) bool {
	name := lastName(path)
	return name == id || strings.HasSuffix(name, "-"+id)
}

// namedFor returns the id of the container for which an engine gives a cgroup this name: no name is
// one of two containers by their ids.
func namedFor(path string) string {
	name, longest := lastName(path), ""
	for _, prefix := range enginePrefixes {
		if strings.HasPrefix(name, prefix) && len(prefix) > len(longest) {
			longest = prefix
		}
	}
	return name[len(longest):]
}

// enginePrefixes are what engines and runtimes put before an id.
var enginePrefixes = []string{"crio-", "cri-containerd-", "docker-", "libpod-", "libpod-payload-", "nerdctl-",
	"buildkit-", "runc-", "crun-"}

// lastName returns the last name of a path, or that of the unit which "slice:prefix:name" means.
func lastName(path string) string {
	if _, unit, isUnit := strings.Cut(path, ":"); isUnit && !strings.Contains(path, "/") {
		path = strings.Replace(unit, ":", "-", 1)
	}
	return strings.TrimSuffix(path[strings.LastIndex(path, "/")+1:], ".scope")
}
