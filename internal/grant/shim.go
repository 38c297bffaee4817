package grant

import (
	"path/filepath"
	"slices"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Shim is the pair of proxy libraries that limit a container's memory (docs/shim.md), as found on
// this node.
type Shim struct {
	Dir      string // their directory, without links; "" if they cannot be used
	Problem  string // why they cannot be used
	Throttle bool   // ThrottleLibrary is in the same directory
}

// ThrottleLibrary is the proxy of libcuda that throttles launches, too: for containers with a share
// of compute.
const ThrottleLibrary = "libcuda-throttle.so.1"

// ShimPlace is the directory in a container below which the proxies find the driver's libraries and
// the grant's records (shim/place.h).
const ShimPlace = "/run/gpuledger"

// The names of a grant's records, in its directory on the node and below ShimPlace.
const (
	LimitsFile = "limits" // what may be used; read-only in the container
	RegionFile = "region" // what each process uses; the container writes it
)

// Shimmed are the driver's libraries that the proxies replace: their SONAMEs, and the names without
// a version that programs also open.
var Shimmed = []string{"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so"}

// OwnLibrary is a path in a container at which a program would find another library of the driver
// than the one it is given.
type OwnLibrary struct {
	Place string // a path without links
	Name  string // one of Shimmed
}

// LimitsRoot returns the directory of all grants' records. It is a small file system of its own,
// because containers write there.
func (p Policy) LimitsRoot() string { return filepath.Join(p.RunDir, "limits") }

// LimitsDir returns the directory of one grant's records.
func (p Policy) LimitsDir(id ID) string { return filepath.Join(p.LimitsRoot(), string(id)) }

// ContextsFile is where gpuledgerd records what contexts take of each GPU.
func (p Policy) ContextsFile() string { return filepath.Join(p.RunDir, "contexts") }

// RecordMounts returns the mounts that bring a grant's records into its containers.
func (p Policy) RecordMounts(id ID) []*cdispec.Mount {
	dir := p.LimitsDir(id)
	return []*cdispec.Mount{
		{HostPath: filepath.Join(dir, LimitsFile), ContainerPath: filepath.Join(ShimPlace, LimitsFile),
			Options: []string{"ro", "nosuid", "nodev", "noexec", "bind"}},
		{HostPath: filepath.Join(dir, RegionFile), ContainerPath: filepath.Join(ShimPlace, RegionFile),
			Options: []string{"rw", "nosuid", "nodev", "noexec", "bind"}},
	}
}

// RecordOf returns the grant whose record a bind mount brings to the path where gpuledger mounts
// one. It is "" if the mount is none, or is writable where it must be read-only.
func (p Policy) RecordOf(source, destination string, options []string) ID {
	// true for almost every mount; it saves parsing the path
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
