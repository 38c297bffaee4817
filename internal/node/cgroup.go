package node

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// inCgroups finds out where the container's cgroup will be, and whether processes are there already: they would get its GPUs
// with it. What cannot be told from here is left out; nobody could tell later either when it is empty.
func (v *visit) inCgroups() {
	for _, path := range cgroupPaths(v.request.Cgroup) {
		if populated, err := v.Ledger.Populated(path); err == nil {
			v.cgroups = append(v.cgroups, path)
			v.crowded = v.crowded || populated
		}
	}
}

func (v visit) crowdedCgroup() *Decision {
	r := refusal(grant.InjectionImpossible, "container %q would share the cgroup %s, and by that its GPUs, with processes that are there already",
		v.Container.Name(), grant.Printable(v.request.Cgroup))
	r.Hint = "engines give each container a cgroup of its own; leave linux.cgroupsPath to them, or wait until the processes have ended"
	return r
}

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
