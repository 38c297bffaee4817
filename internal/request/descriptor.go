package request

import (
	"cmp"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/hostpath"
)

// descriptors examines the files that the container is handed open. The kernel checks the device
// rules at open(2) alone. So an open node of a GPU is the GPU, whatever rules the container has.
// Only the engine can take a descriptor out again.
func descriptors(f *containerFacts) (found vectorResult) {
	for i := range f.caller.Descriptors {
		descriptor(f, &f.caller.Descriptors[i], &found)
	}
	return found
}

func descriptor(f *containerFacts, d *host.Descriptor, found *vectorResult) {
	vector := descriptorVector(d)
	what, passes := leadsTo(d)
	switch {
	case d.Mode&unix.S_IFMT == unix.S_IFCHR:
		major, minor := int64(unix.Major(d.Rdev)), int64(unix.Minor(d.Rdev))
		if class := f.devices.class(major, minor); class != "" {
			found.hit(grant.Hit{Vector: vector, Value: "c " + digits(major) + ":" + digits(minor),
				Code: grant.GPUDeviceNode, Cover: grant.CoverNode,
				Node: grant.DeviceNode{Class: class, Minor: int(minor)}})
		}
		return
	case passes:
		found.root(vector + " (" + what + ")")
		return
	case what == "" && leadsOn(d):
		m, p := asMount(f, d)
		source(f, vector, &m, d.Path, p, found)
		return
	case what == "" && (governsGPUs(f, d.Path) || governsGPUs(f, d.Socket) || governsGPUs(f, d.Peer)):
		what = "a file or socket that governs GPUs"
	}
	if what != "" {
		found.hit(grant.Hit{Vector: vector, Value: what, Code: grant.GPUSocket, Cover: grant.CoverNever})
	}
}

func descriptorVector(d *host.Descriptor) string { return "descriptor:" + strconv.Itoa(d.Number) }

// leadsTo returns what a descriptor gives its holder whatever its path is, "" for nothing, and
// whether it passes all the same. What any process can use that has the descriptor is refused: no
// device rule is checked there. What needs more passes and is recorded as node-root, as a pid
// namespace of the node's is: pidfd_getfd(2) for example needs the right to trace the process. All
// other objects of the kernel are harmless: an epoll gives no process the files that it watches, a
// namespace is entered with CAP_SYS_ADMIN, and a BPF program is attached with as much
// (docs/adr/0084).
func leadsTo(d *host.Descriptor) (what string, passes bool) {
	const process, memory = "a process", "the memory of a process"
	switch d.FileSystem {
	case unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC:
		return "a cgroup", false
	case unix.PROC_SUPER_MAGIC:
		switch name := filepath.Base(d.Path); {
		case d.IsDir() && strings.ContainsAny(d.Path, "0123456789"):
			return process, true
		case name == "mem", name == "environ", strings.HasSuffix(name, " (deleted)"):
			return memory, false
		case !d.IsDir() && !strings.HasPrefix(d.Path, "/proc/"): // a mount of one file, which may be any
			return memory, false
		}
	}
	switch d.Path {
	case "anon_inode:[io_uring]":
		// IORING_OP_FIXED_FD_INSTALL gives out files that another process registered
		return "an io_uring", false
	case "anon_inode:[userfaultfd]": // fills in pages
		return memory, false
	case "anon_inode:seccomp notify": // answers them
		return "the system calls of a process", false
	case "anon_inode:[pidfd]":
		return process, true
	case "anon_inode:[fanotify]": // opens them for its reader
		return "the files that are opened on the node", true
	}
	if d.Mode&unix.S_IFMT == unix.S_IFBLK {
		return "a disk", true
	}
	return "", false
}

// leadsOn reports whether a descriptor leads on as a mount of the same source does: it is a
// directory, or a socket that is open as a path.
func leadsOn(d *host.Descriptor) bool { return d.IsDir() || d.IsSocket() && d.Path != "" }

// asMount returns the mount that would bring the same, and its place of the node. If something else
// is at its path now, it was opened in another mount namespace, or is a mount of its own
// (open_tree(2)), or was covered or removed since.
func asMount(f *containerFacts, d *host.Descriptor) (specs.Mount, hostpath.Place) {
	at := f.paths.Resolve(d.Path)
	p := hostpath.Place{ResolvedFile: d.ResolvedFile, Exists: true}
	p.Shifting = !at.Exists || at.Mount != d.Mount || at.Dev != d.Dev
	return specs.Mount{Destination: descriptorVector(d), Source: d.Path, Options: []string{"rbind"}}, p
}

// FindHanded is Find for a process that is started in a container which exists already (exec). It
// finds what the process's descriptors lead to, and beside it the nodes that the container was
// created with, by the numbers of its devices and rules. It looks at no source of the container's
// mounts: nothing mounts them again, and they may be on a server that is dead by now.
func FindHanded(spec Spec, caller Caller, node NodeFacts) (grant.Request, error) {
	f, err := readFacts(spec, caller, node)
	if err != nil {
		return grant.Request{}, err
	}
	r := grant.Request{Container: f.caller.Container, AllDevices: f.rules.all}
	deviceRules(f).addTo(&r)
	numberedNodes(f).addTo(&r)
	descriptors(f).addTo(&r)
	if by, reaches := accessOf(f); reaches {
		var found vectorResult
		handedRoot(f, by, &found)
		found.addTo(&r)
	}
	unsearched(f).addTo(&r)
	return r, f.devices.err
}

// handedRoot finds the descriptors that make root in the container root on the node.
func handedRoot(f *containerFacts, by hostpath.Access, found *vectorResult) {
	for i := range f.caller.Descriptors {
		if d := &f.caller.Descriptors[i]; handsRoot(f, d, by, found) {
			found.root(descriptorVector(d))
		}
	}
}

// handsRoot reports whether a descriptor makes root in the container root on the node, and is not
// recorded for what it is already. Of a regular file, and of the peer of a socket, only the name is
// compared.
func handsRoot(f *containerFacts, d *host.Descriptor, by hostpath.Access, found *vectorResult) bool {
	if _, passes := leadsTo(d); passes {
		return false
	}
	if leadsOn(d) {
		m, p := asMount(f, d)
		by.Write, by.WriteBelow = writable(&m)
		return !p.Shifting && sourceMakesRoot(f, descriptorVector(d), &m, p, &by, found)
	}
	path := cmp.Or(d.Peer, d.Path)
	return filepath.IsAbs(path) && f.paths.GovernsByName(path, &by)
}

// governsGPUs reports whether a path is of a file or socket of the ledger's, or of a socket of an
// MPS daemon.
func governsGPUs(f *containerFacts, path string) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	dir := filepath.Dir(path)
	return f.paths.InLedger(path) || filepath.Base(path) == controlSocket &&
		(f.pipes.isRoots(dir) || f.node.Host.NodeListens(dir, controlSocket) && f.pipes.like(dir))
}

// asksForDRM reports whether a descriptor is of the DRM major.
func asksForDRM(descriptors []host.Descriptor) bool {
	return slices.ContainsFunc(descriptors, func(d host.Descriptor) bool {
		return d.Mode&unix.S_IFMT == unix.S_IFCHR && unix.Major(d.Rdev) == grant.MajorDRM
	})
}
