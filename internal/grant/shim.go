package grant

import (
	"path/filepath"
	"slices"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Shim is the pair of proxy libraries that hold a container to its memory (docs/shim.md), as this
// node has them.
type Shim struct {
	Dir      string // where they lie, without links; "" where they cannot be used
	Problem  string // why not
	Throttle bool   // there is ThrottleLibrary beside them
}

// ThrottleLibrary is the proxy of libcuda that throttles launches, too: for containers with a share
// of compute.
const ThrottleLibrary = "libcuda-throttle.so.1"

// ShimPlace is the directory in a container below which the proxies look for the driver and for the
// grant's records (shim/place.h).
const ShimPlace = "/run/gpuledger"

// The records of a grant, by their names in its directory of the node and below ShimPlace.
const (
	LimitsFile = "limits" // what may be used; read-only in the container
	RegionFile = "region" // what each process uses; the container's to write
)

// Shimmed are the libraries of the driver that the proxies take the place of, by SONAME, and by the
// name that programs ask for without it.
var Shimmed = []string{"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so"}

// OwnLibrary is a place in a container where a program would find a library of the driver's other
// than the one it is given.
type OwnLibrary struct {
	Place string // a path without links
	Name  string // one of Shimmed
}

// LimitsRoot holds the records of all grants. It is a small file system of its own, because
// containers write there.
func (p Policy) LimitsRoot() string { return filepath.Join(p.RunDir, "limits") }

// LimitsDir holds the records of one grant.
func (p Policy) LimitsDir(id ID) string { return filepath.Join(p.LimitsRoot(), string(id)) }

// RecordMounts are the mounts by which the containers of a grant have its records.
func (p Policy) RecordMounts(id ID) []*cdispec.Mount {
	dir := p.LimitsDir(id)
	return []*cdispec.Mount{
		{HostPath: filepath.Join(dir, LimitsFile), ContainerPath: filepath.Join(ShimPlace, LimitsFile),
			Options: []string{"ro", "nosuid", "nodev", "noexec", "bind"}},
		{HostPath: filepath.Join(dir, RegionFile), ContainerPath: filepath.Join(ShimPlace, RegionFile),
			Options: []string{"rw", "nosuid", "nodev", "noexec", "bind"}},
	}
}

// RecordOf tells whose record a bind mount brings to the place where ours goes; "" if it is none,
// or could be written where it must not be.
func (p Policy) RecordOf(source, destination string, options []string) ID {
	// as of almost every mount, for which no path need be taken apart
	if !strings.Contains(source, idPrefix) {
		return ""
	}
	id, err := ParseID(filepath.Base(filepath.Dir(source)))
	if err != nil {
		return ""
	}
	for _, m := range p.RecordMounts(id) {
		writes := slices.Contains(options, "rw") || !slices.Contains(options, "ro")
		if m.HostPath == source && m.ContainerPath == destination &&
			(!writes || slices.Contains(m.Options, "rw")) {
			return id
		}
	}
	return ""
}
