// Package oracle reads a container's config.json a second time, slowly and plainly, and says what
// would come of it: which devices each runtime would let the container open on each version of
// cgroups, what it would mount, and what an injector would read in it. It shares no code and no
// table with the guard, and was written from the runtimes' sources, so that what the two agree on
// is more than one author's belief.
package oracle

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Device is a character device.
type Device struct{ Major, Minor int64 }

// World is a node as far as the oracle needs it.
type World struct {
	// Devices are the character devices of GPUs, each with what a grant must hold for it: a GPU's
	// UUID, Driver for what comes with every grant, Display for what may come with exclusive ones,
	// Nothing for what no grant gives. Each of them is tried.
	Devices map[Device]string
	Majors  []int64  // those that are the driver's alone: what Devices does not list of them no grant gives
	Private []string // directories of which no container gets a part, as real paths
	Bundle  string   // the container's, which a relative source of a mount begins with
}

// What a device needs, beside a UUID.
const (
	Driver  = "driver"
	Display = "display" // what drives displays: of GPUs that nobody else has
	Nothing = "nothing"
)

// needs is what a grant must hold for a device of a GPU.
func (w World) needs(d Device) (needs string, isGPU bool) {
	if needs, isGPU = w.Devices[d]; isGPU {
		return needs, true
	}
	return Nothing, slices.Contains(w.Majors, d.Major)
}

// Way is one way to a GPU, or a request for one.
type Way struct {
	How string
	// what a grant must hold: a UUID, an index or another name of a GPU, Driver, Display, "all", or
	// Nothing
	Needs string
}

// Ways lists every way in a config.json, read as runc reads it and as crun does. An error says that
// no runtime starts it.
func (w World) Ways(config []byte) ([]Way, error) {
	asRunc, errRunc := readAsRunc(config)
	asCrun, errCrun := readAsCrun(config)
	if errRunc != nil && errCrun != nil {
		return nil, fmt.Errorf("neither runc nor crun reads it: %w", errRunc)
	}
	var ways []Way
	if errRunc == nil {
		ways = append(ways, w.of(asRunc, "runc", runcV1, runcV2)...)
	}
	if errCrun == nil {
		ways = append(ways, w.of(asCrun, "crun", crunV1, crunV2)...)
	}
	return ways, nil
}

func (w World) of(s spec, runtime string, filters ...filter) []Way {
	ways := w.open(s, runtime, filters)
	ways = append(ways, w.nodes(s)...)
	ways = append(ways, w.mounts(s)...)
	return append(ways, requests(s)...)
}

// open tries to open every device of a GPU in every manner. A container can bring a node for it in
// its image, or make one.
func (w World) open(s spec, runtime string, filters []filter) []Way {
	var ways []Way
	for d, needs := range w.tried(s.rules) {
		if slices.ContainsFunc(filters, func(opens filter) bool {
			return opens(s.rules, d, "r") || opens(s.rules, d, "w") || opens(s.rules, d, "rw")
		}) {
			ways = append(ways, Way{fmt.Sprintf("%s opens %d:%d", runtime, d.Major, d.Minor), needs})
		}
	}
	for key := range s.annotations { // runc and crun hand these to systemd, which then owns the device policy
		if strings.HasPrefix(key, "org.systemd.property.Device") {
			ways = append(ways, Way{"annotation " + key, Nothing})
		}
	}
	return ways
}

// tried are all known devices, and of the driver's majors every minor that a rule names.
func (w World) tried(rules []rule) map[Device]string {
	all := maps.Clone(w.Devices)
	for _, r := range rules {
		for _, major := range w.Majors {
			if d := (Device{major, r.minor}); r.minor >= 0 {
				all[d], _ = w.needs(d)
			}
		}
	}
	return all
}

// nodes are those that the runtime would make. In a user namespace it binds the host's node of that
// path in place of it.
func (w World) nodes(s spec) []Way {
	var ways []Way
	for _, d := range s.devices {
		if needs, isGPU := w.needs(Device{d.major, d.minor}); isGPU && (d.kind == "c" || d.kind == "u") {
			ways = append(ways, Way{"node " + d.path, needs})
		}
		if s.userNamespace {
			ways = append(ways, w.source(d.path)...)
		}
	}
	return ways
}

// mounts are the bind mounts of GPU nodes and of private directories, and the device list of
// NVIDIA's toolkit. The toolkit of today looks only at those of /dev/null; nothing else has a
// reason to be there.
func (w World) mounts(s spec) []Way {
	var ways []Way
	for _, m := range s.mounts {
		if m.bind {
			ways = append(ways, w.source(m.source)...)
		}
		const list = "run/nvidia-container-devices"
		destination := strings.TrimPrefix(filepath.Clean("/"+m.destination), "/var")
		if rest, found := strings.CutPrefix(destination, "/"+list); found && rest != "" {
			ways = append(ways, Way{"mount on " + m.destination, strings.TrimPrefix(rest, "/")})
		}
	}
	return ways
}

// holds reports whether a directory is a thing, or has it somewhere below: each is looked at,
// whatever it is called.
func holds(dir string, thing os.FileInfo) bool {
	found := false
	_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return nil // gone since
		}
		if info, err := os.Lstat(path); err == nil && os.SameFile(info, thing) {
			found = true
			return filepath.SkipAll
		}
		return nil
	})
	return found
}

// source looks at what a path of the host leads to.
func (w World) source(path string) []Way {
	from := path
	if !filepath.IsAbs(path) {
		from = w.Bundle + "/" + path
	}
	real, err := filepath.EvalSymlinks(from)
	if err != nil {
		return nil
	}
	for _, dir := range w.Private {
		if real == dir || strings.HasPrefix(real, dir+"/") {
			return []Way{{"mount of " + path, Nothing}}
		}
	}
	info, err := os.Stat(real)
	if err != nil {
		return nil
	}
	for _, dir := range w.Private {
		if holds(dir, info) { // and somebody has mounted it there
			return []Way{{"mount of " + path, Nothing}}
		}
	}
	if info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	rdev := uint64(info.Sys().(*syscall.Stat_t).Rdev)
	d := Device{int64(rdev >> 8 & 0xfff), int64(rdev&0xff | rdev>>12&^0xff)}
	if needs, isGPU := w.needs(d); isGPU {
		return []Way{{"mount of " + path, needs}}
	}
	return nil
}
