package request

import (
	"strconv"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// deviceNodes examines linux.devices, by their numbers. In a user namespace, the container's or its
// own, a runtime cannot create nodes: it binds the host's node at the path and ignores the numbers.
// There the path counts, too.
func deviceNodes(f *containerFacts) (found vectorResult) {
	for _, d := range f.spec.Linux.Devices {
		major, minor := int64(-1), int64(-1)
		if isChar(d.Type) {
			major, minor = kernelMajor(d.Major), kernelMinor(d.Minor)
			found.node(f, d.Path, f.devices.class(major, minor), major, minor)
		}
		if !f.userNamespaced && !f.rules.unruled {
			continue
		}
		for _, path := range f.sources.walks(d.Path) {
			p := f.paths.Resolve(path)
			if p.Shifting {
				found.hit(grant.Hit{Vector: "device:" + d.Path, Value: grant.UnknownTarget,
					Code: grant.GPUDeviceNode, Cover: grant.CoverNever})
				break
			}
			if class, M, m := f.devices.classAt(path, p); M != major || m != minor {
				found.node(f, d.Path, class, M, m)
			}
		}
	}
	return found
}

// numberedNodes finds the GPUs' nodes in linux.devices by their numbers alone.
func numberedNodes(f *containerFacts) (found vectorResult) {
	for _, d := range f.spec.Linux.Devices {
		if major, minor := kernelMajor(d.Major), kernelMinor(d.Minor); isChar(d.Type) {
			found.node(f, d.Path, f.devices.class(major, minor), major, minor)
		}
	}
	return found
}

// node adds a node of linux.devices, if it is a GPU's.
func (found *vectorResult) node(f *containerFacts, path string, class grant.NodeClass, major, minor int64) {
	if class == "" {
		return
	}
	found.hit(grant.Hit{Vector: "device:" + path,
		Value: "c " + strconv.FormatInt(major, 10) + ":" + strconv.FormatInt(minor, 10),
		Code:  f.rules.codeFor(grant.GPUDeviceNode), Cover: cover(class),
		Node:    grant.DeviceNode{Class: class, Minor: int(minor)},
		Removal: grant.Removal{Kind: grant.RemoveDevice, Name: path}})
}
