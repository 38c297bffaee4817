package request

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
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
	for i := range f.caller.Descriptors {
		d := &f.caller.Descriptors[i]
		vector := descriptorVector(d)
		what, passes := leadsTo(d)
		switch {
		case d.Mode&unix.S_IFMT == unix.S_IFCHR:
			major, minor := int64(unix.Major(d.Rdev)), int64(unix.Minor(d.Rdev))
			if class := f.class(major, minor); class != "" {
				f.hit(grant.Hit{Vector: vector, Value: "c " + digits(major) + ":" + digits(minor), Code: grant.GPUDeviceNode,
					Cover: grant.CoverNode, Node: grant.Node{Class: class, Minor: int(minor)}})
			}
			continue
		case passes:
			f.nodeRootBy(vector + " (" + what + ")")
			continue
		case what == "" && leadsOn(d):
			m, p := f.asMount(d)
			f.source(vector, m, d.Path, p)
			continue
		case what == "" && (f.governs(d.Path) || f.governs(d.Socket) || f.governs(d.Peer)):
			what = "a file or socket that governs GPUs"
		}
		if what != "" {
			f.hit(grant.Hit{Vector: vector, Value: what, Code: grant.GPUSocket, Cover: grant.CoverNever})
		}
	}
}

func descriptorVector(d *host.Descriptor) string { return "descriptor:" + strconv.Itoa(d.Number) }

// leadsTo says what a descriptor gives its holder whatever its path is, "" for nothing, and whether it passes all the same. What can be used by
// whoever has the descriptor is refused: no device rule is asked there. What takes more, as pidfd_getfd(2) takes the right to trace the process,
// passes and is recorded as node-root, as a pid namespace of the node's is. All other objects of the kernel are harmless: an epoll gives nobody
// the files that it watches, a namespace is entered with CAP_SYS_ADMIN, and a BPF program is attached with as much (docs/adr/0084).
func leadsTo(d *host.Descriptor) (what string, passes bool) {
	const process, memory = "a process", "the memory of a process"
	switch d.FileSystem {
	case unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC:
		return "a cgroup", false
	case unix.PROC_SUPER_MAGIC:
		switch name := filepath.Base(d.Path); {
		case d.IsDir() && strings.ContainsAny(d.Path, "0123456789"):
			return process, true
		case name == "mem", name == "environ":
			return memory, false
		}
	}
	switch d.Path {
	case "anon_inode:[io_uring]": // IORING_OP_FIXED_FD_INSTALL gives out the files that another process has registered
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

// leadsOn reports whether a descriptor leads on as a mount of the same source does: a directory, or a socket that is open as a path.
func leadsOn(d *host.Descriptor) bool { return d.IsDir() || d.IsSocket() && d.Path != "" }

// asMount is the mount that would bring along the same, and its place of the node. If something else is at its path now, it was opened in
// another mount namespace, or is a mount of its own (open_tree(2)), or was covered or removed since.
func (f *finder) asMount(d *host.Descriptor) (specs.Mount, place) {
	at := f.look(d.Path)
	p := place{Target: d.Target, exists: true}
	p.Shifting = !at.exists || at.Mount != d.Mount || at.Dev != d.Dev
	return specs.Mount{Destination: descriptorVector(d), Source: d.Path, Options: []string{"rbind"}}, p
}

// handsRoot reports whether a descriptor makes root in the container root on the node. Of a regular file, and of the peer of a socket, only
// the name is compared.
func (f *finder) handsRoot(d *host.Descriptor) bool {
	if leadsOn(d) {
		m, p := f.asMount(d)
		return !p.Shifting && (f.makesRoot(p, m) || f.governsElsewhere(p, m))
	}
	path := cmp.Or(d.Peer, d.Path)
	w := way{&place{Target: host.Target{Path: path}}, &specs.Mount{}, true}
	return filepath.IsAbs(path) && (f.touchesOne(guards, w) || isProgram(path) && f.lets(path))
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
