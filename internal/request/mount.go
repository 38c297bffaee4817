package request

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/hostpath"
)

// volumeDevices are the directories below which a mount names a device for NVIDIA's runtime. Its
// test for them lacks the trailing slash, so this one does.
var volumeDevices = []string{"/var/run/nvidia-container-devices", "/run/nvidia-container-devices"}

// kernelTypes are the file systems that engines mount and that bring none of the host's files,
// whatever their source and options say.
var kernelTypes = []string{"proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "bpf",
	"debugfs", "tracefs", "securityfs", "hugetlbfs", "ramfs", "configfs"}

// bindTypes stand in the place of a type if the options say bind; the kernel has no file system of
// these names.
var bindTypes = []string{"", "none", "bind", "rbind"}

// mounts examines the root file system and the mounts: what they bring of the node.
func mounts(f *containerFacts) (found vectorResult) {
	if f.root != "" {
		rootFileSystem(f, &found)
	}
	for i := range f.spec.Mounts {
		m := &f.spec.Mounts[i]
		volumeDevice(m, &found)
		if f.isDriverFile(m) {
			continue
		}
		if IsBind(*m) {
			bind(f, i, &found)
		}
		switch {
		case slices.Contains(kernelTypes, m.Type):
		case m.Type == "devtmpfs":
			parentOfNodes(f, "mount:"+m.Destination, m, &found)
		case !slices.Contains(bindTypes, m.Type):
			fileSystemMount(f, m, &found)
		}
	}
	pipeDirectory(f, &found)
	return found
}

// rootFileSystem examines the container's own root.
func rootFileSystem(f *containerFacts, found *vectorResult) {
	p := f.paths.Resolve(f.root)
	others, _ := f.rootElsewhere(p) // if they are unknown, nodeRoot records it
	if f.paths.InLedger(p.Path) || !f.isPrivate(p.Path) && bringsDaemon(f, "root", p, found) ||
		slices.ContainsFunc(others, func(a hostpath.Alias) bool {
			return !a.Inside && (f.paths.InLedger(a.Path) || bringsDaemon(f, "root", a.Place, found))
		}) {
		found.hit(grant.Hit{Vector: "root", Value: f.spec.Root.Path, Code: grant.GPUSocket,
			Cover: grant.CoverNever})
	}
	if f.rules.unruled && bringsDev(f, p.Path) {
		found.hit(grant.Hit{Vector: "root", Value: f.spec.Root.Path, Code: grant.GPUBindMount,
			Cover: grant.CoverNever})
	}
}

// isDriverFile reports whether a mount is as an admission writes it for a file of the driver, and
// the inventory has found the file: it is a regular file in root's directories. A spec has tens of
// them, and no look at one would find a way to a GPU. In the container's own root, and if that is
// the node's, the mounts before it decide what it is.
func (f *containerFacts) isDriverFile(m *specs.Mount) bool {
	if !f.node.Files.Has(m.Source) || m.Type != "bind" || !slices.Equal(m.Options, grant.DriverFileOptions) ||
		len(m.UIDMappings)+len(m.GIDMappings) > 0 {
		return false
	}
	return f.root == "" || !hostpath.Within(m.Source, f.paths.Real(f.root))
}

// IsBind reports whether a mount brings what its source is on the host. The options decide, the
// type is only a convention. runc takes a mount with such an option for a bind mount. crun clones
// the source of a mount that has ids of its own, before it looks at the type (linux.c,
// maybe_get_idmapped_mount).
func IsBind(m specs.Mount) bool {
	return m.Type == "bind" || m.Type == "rbind" || len(m.UIDMappings)+len(m.GIDMappings) > 0 ||
		slices.ContainsFunc(m.Options, func(option string) bool {
			return option == "bind" || option == "rbind" || strings.HasPrefix(option, "idmap") ||
				strings.HasPrefix(option, "ridmap")
		})
}

// recursive reports whether a mount also brings what is mounted below its source.
func recursive(m *specs.Mount) bool {
	return slices.ContainsFunc(m.Options,
		func(option string) bool { return option == "rbind" || strings.HasPrefix(option, "ridmap") })
}

// elsewhere returns the other places of a file that a mount brings.
func (f *containerFacts) elsewhere(p hostpath.Place, recursive bool) ([]hostpath.Alias, error) {
	return f.paths.Elsewhere(p, recursive, f.pipes.looksLikeOne(p))
}

// rootElsewhere returns the other places of the container's own root. An image may look like the
// pipe directory of an MPS daemon, and is none.
func (f *containerFacts) rootElsewhere(p hostpath.Place) ([]hostpath.Alias, error) {
	return f.paths.Elsewhere(p, false, !f.isPrivate(p.Path) && f.pipes.looksLikeOne(p))
}

// volumeDevice finds a mount that names GPUs by its destination.
func volumeDevice(m *specs.Mount, found *vectorResult) {
	// false for almost every mount; no way to write a path hides a name in it
	if !strings.Contains(m.Destination, "nvidia-container-devices") {
		return
	}
	destination := filepath.Clean("/" + m.Destination)
	for _, dir := range volumeDevices {
		if rest, is := strings.CutPrefix(destination, dir); is {
			found.deviceList("mount:"+m.Destination, strings.Trim(rest, "/"),
				grant.Removal{Kind: grant.RemoveMount, Name: m.Destination})
		}
	}
}

// bind examines a bind mount: what its source is on the host counts, not its name.
func bind(f *containerFacts, i int, found *vectorResult) {
	m := &f.spec.Mounts[i]
	if id := f.node.Policy.RecordOf(m.Source, m.Destination, m.Options); id != "" {
		found.hit(grant.Hit{Vector: "mount:" + m.Destination, Value: m.Source, Code: grant.GPUSocket,
			Cover: grant.CoverRecord, Grant: id,
			Removal: grant.Removal{Kind: grant.RemoveMount, Name: m.Destination}})
		return
	}
	for _, p := range f.sources.of(i) {
		if source(f, "mount:"+m.Destination, m, m.Source, p, found) {
			return
		}
	}
}

// source examines a file or directory of the host that a mount brings, at each of its places. It
// reports whether it found something.
func source(f *containerFacts, vector string, m *specs.Mount, value string, p hostpath.Place,
	found *vectorResult) bool {
	if p.Err != nil {
		f.devices.cannotTell(p.Path, p.Err)
		return true
	}
	if sourceAt(f, vector, m, value, p, found) {
		return true
	}
	others, _ := f.elsewhere(p, recursive(m)) // if they are unknown, nodeRoot records it
	return slices.ContainsFunc(others, func(a hostpath.Alias) bool {
		return !a.Inside && sourceAt(f, vector, m, value+" (which is "+a.Path+")", a.Place, found)
	})
}

// sourceAt examines a source at one of its places.
func sourceAt(f *containerFacts, vector string, m *specs.Mount, value string, p hostpath.Place,
	found *vectorResult) bool {
	if isPlain(f, &p) {
		return false
	}
	if f.paths.InLedger(p.Path) || bringsDaemon(f, vector, p, found) {
		found.hit(grant.Hit{Vector: vector, Value: value, Code: grant.GPUSocket, Cover: grant.CoverNever})
		return true
	}
	if p.Shifting {
		found.hit(grant.Hit{Vector: vector, Value: value + " (" + grant.UnknownTarget + ")",
			Code: grant.GPUBindMount, Cover: grant.CoverNever})
		return true
	}
	if class, major, minor := f.devices.classOf(p); class != "" {
		found.hit(grant.Hit{Vector: vector, Value: value + " (c " + digits(major) + ":" + digits(minor) + ")",
			Code: grant.GPUBindMount, Cover: cover(class), Node: grant.DeviceNode{Class: class,
				Minor: int(minor)},
			Removal: grant.Removal{Kind: grant.RemoveMount, Name: m.Destination}})
		return true
	}
	if f.rules.opensAny && bringsDev(f, p.Path) {
		parentOfNodes(f, vector, m, found)
		return true
	}
	return false
}

// isPlain reports whether a place is a regular file in no directory that matters, as the tens of a
// driver's files are. It can be nothing that sourceAt looks for.
func isPlain(f *containerFacts, p *hostpath.Place) bool {
	return p.Exists && p.Mode&unix.S_IFMT == unix.S_IFREG && !p.Shifting && !f.paths.InLedger(p.Path) &&
		!isUsualPipe(p.Path)
}

// bringsDev reports whether a directory is a parent of the node's devices, or one of them with
// GPUs' nodes.
func bringsDev(f *containerFacts, dir string) bool {
	return hostpath.Within(f.node.Host.Dev, dir) || holdsNodes(f, dir)
}

// holdsNodes reports whether a directory holds a GPU's node, as /dev/dri and /dev/nvidia-caps do.
func holdsNodes(f *containerFacts, dir string) bool {
	if !hostpath.Within(dir, f.node.Host.Dev) {
		return false
	}
	entries, _ := os.ReadDir(dir) // if it is no directory: none
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		path := filepath.Join(dir, e.Name())
		class, _, _ := f.devices.classAt(path, f.paths.Resolve(path))
		return class != ""
	})
}

// parentOfNodes finds a mount that brings the host's nodes, but only if a rule lets any be opened.
// Without one each open answers EPERM, and node agents mount the host's / or /dev for other
// reasons.
func parentOfNodes(f *containerFacts, vector string, m *specs.Mount, found *vectorResult) {
	if !f.rules.opensAny {
		return
	}
	code := f.rules.codeFor(grant.GPUBindMount)
	if f.rules.unruled { // without the nodes and rules of the privilege it would stay open
		code = grant.GPUBindMount
	}
	found.hit(grant.Hit{Vector: vector, Value: m.Source, Code: code, Cover: grant.CoverDrop})
}
