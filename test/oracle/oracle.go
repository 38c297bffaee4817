// Package oracle reads a container's config.json a second time, slowly and simply. It reports the
// devices that each runtime would let the container open on each version of cgroups, the mounts,
// and what an injector would read. It shares no code and no table with the guard. It was written
// from the runtimes' sources, so that a result on which both agree does not rest on one
// implementation.
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

// World is what the oracle needs to know about a node.
type World struct {
	// Devices are the character devices of GPUs, each with what a grant must hold for it. That is a
	// GPU's UUID, Driver for what comes with every grant, Display for what may come with exclusive
	// ones, or Nothing for what no grant gives. The oracle tries each of them.
	Devices map[Device]string
	// those of the driver alone: of their devices no grant gives any that Devices does not list
	Majors  []int64
	Private []string // directories of which no container gets any part, as real paths
	Bundle  string   // the container's; a relative source of a mount begins with it
}

// What a device needs, beside a UUID.
const (
	Driver  = "driver"
	Display = "display" // devices that drive displays, for GPUs that no other container has
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

// Ways lists every way in a config.json, read as runc and as crun read it. An error means that no
// runtime starts it.
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

// open tries to open every device of a GPU with every access. A container can have a node for it in
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

// tried are all known devices, and for the driver's majors every minor that a rule names.
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

// nodes are the nodes that the runtime would make. In a user namespace it binds the host's node of
// that path instead.
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
// NVIDIA's toolkit. The present toolkit reads only those of /dev/null; no other use of that list is
// legitimate.
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

// holds reports whether a directory is a file, or contains it at any depth. It compares each file
// below, whatever its name is.
func holds(dir string, thing os.FileInfo) bool {
	found := false
	_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return nil // removed meanwhile
		}
		if info, err := os.Lstat(path); err == nil && os.SameFile(info, thing) {
			found = true
			return filepath.SkipAll
		}
		return nil
	})
	return found
}

// source is the ways through a path of the host.
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
		if holds(dir, info) { // and it is mounted there
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
