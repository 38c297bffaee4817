package request

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// descriptors judges what the container is handed open. The kernel asks the device rules at open(2) alone, so an open node of a GPU is the
// GPU, whatever rules the container has. Nothing can take a descriptor out again but the engine.
func (f *finder) descriptors() {
	if f.caller.RestoresRules && f.onV1() {
		f.hit(grant.Hit{Vector: "option:--manage-cgroups-mode", Value: "whatever the checkpoint has", Code: grant.GPUDeviceRule, Cover: grant.CoverNever})
	}
	for _, d := range f.caller.Descriptors {
		vector := "descriptor:" + strconv.Itoa(d.Number)
		if d.Mode&unix.S_IFMT == unix.S_IFCHR {
			major, minor := int64(unix.Major(d.Rdev)), int64(unix.Minor(d.Rdev))
			if class := f.class(major, minor); class != "" {
				f.hit(grant.Hit{Vector: vector, Value: "c " + digits(major) + ":" + digits(minor), Code: grant.GPUDeviceNode,
					Cover: grant.CoverNode, Node: grant.Node{Class: class, Minor: int(minor)}})
			}
			continue
		}
		if path := append([]string{d.Path}, d.Sockets...); slices.ContainsFunc(path, f.governs) {
			f.hit(grant.Hit{Vector: vector, Value: "a file or socket that governs GPUs", Code: grant.GPUSocket, Cover: grant.CoverNever})
		}
	}
}

// onV1 reports whether device rules are those of a cgroup of version 1, which are files.
func (f *finder) onV1() bool {
	_, err := os.Lstat(filepath.Join(f.node.Host.Sys, "fs/cgroup/devices/cgroup.procs"))
	return err == nil
}

// governs reports whether a path is of a file or socket of ours, or of a socket of an MPS daemon.
func (f *finder) governs(path string) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	dir := filepath.Dir(path)
	return f.isOurs(path) || filepath.Base(path) == controlSocket && (f.isRoots(dir) || f.node.Host.NodeListens(dir, controlSocket) && isPipe(dir))
}

func isPipe(dir string) bool {
	_, is, _ := pipeIn(dir, "")
	return is
}

// asksForDRM reports whether a descriptor is of the DRM major.
func asksForDRM(descriptors []host.Descriptor) bool {
	return slices.ContainsFunc(descriptors, func(d host.Descriptor) bool {
		return d.Mode&unix.S_IFMT == unix.S_IFCHR && unix.Major(d.Rdev) == grant.MajorDRM
	})
}
