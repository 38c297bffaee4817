package request

import (
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/hostpath"
)

// nodeRoot records ways by which the container's root is the node's. Such a container passes: node
// agents have these ways, and a device rule still stands between the container and a GPU until it
// attacks.
func nodeRoot(f *containerFacts) (found vectorResult) {
	by, reaches := accessOf(f)
	if !reaches {
		return vectorResult{}
	}
	if !f.ownUsers {
		namespaces(f, &found)
		capabilities(f, &found)
	}
	rawDisks(f, &found)
	if f.root != "" && rootByRoot(f, by, &found) {
		found.root("root")
	}
	for i := range f.spec.Mounts {
		m := &f.spec.Mounts[i]
		if !f.isDriverFile(m) && rootBy(f, i, by, &found) {
			found.root("mount:" + m.Destination)
		}
	}
	handedRoot(f, by, &found)
	return found
}

// accessOf returns how the container reaches files of the node; false if the node's root is no user
// of its user namespace.
func accessOf(f *containerFacts) (by hostpath.Access, reaches bool) {
	if f.ownUsers && !mapsRoot(f) {
		return by, false
	}
	user := f.spec.Process.User
	return hostpath.Access{Rooted: f.ownUsers || becomesRoot(f), GID: user.GID, Groups: user.AdditionalGids,
		OwnUsers: f.ownUsers, Bundle: f.bundle}, true
}

// becomesRoot reports whether the container's user is root, or can use the node's files like root:
// with a capability, with root's group, or by a setuid program of its image, unless noNewPrivileges
// is set.
func becomesRoot(f *containerFacts) bool {
	u := f.spec.Process.User
	return u.UID == 0 || u.GID == 0 || slices.Contains(u.AdditionalGids, 0) || f.has(capDACOverride) ||
		!f.spec.Process.NoNewPrivileges
}

// namespaces finds what a container shares with the node: its mounts, where only chroot confines
// it, and processes that are not its own. Through /proc/PID/root it reaches the files of every
// process that runs as the same user with no more capabilities. These are most of its neighbours,
// and it can make them do what it wants with their GPUs.
func namespaces(f *containerFacts, found *vectorResult) {
	if ns, own := f.namespace(specs.MountNamespace); !own || ns.Path != "" {
		found.root("namespace:mount")
	}
	if seesOthers(f) {
		found.root("namespace:pid")
	}
}

// seesOthers reports whether the container sees processes of the node or of another container: it
// has no pid namespace, or joins one. In a pod the engine makes it join that of the pod
// (shareProcessNamespace), which is its own.
func seesOthers(f *containerFacts) bool {
	ns, own := f.namespace(specs.PIDNamespace)
	inPod := f.caller.Container.Pod != (grant.Identity{})
	return !own || ns.Path != "" && !(inPod && !f.joinsNodes(specs.PIDNamespace))
}

// mapsRoot reports whether a user namespace has the node's root in it. Its capabilities end at the
// namespace, but it may write what root owns. For a namespace that is joined by its path runtimes
// ignore the spec's maps. They count only if that namespace shows none, because no process is in it
// yet, or none that was started lately (host.HasRoot). Without any map it may have root.
func mapsRoot(f *containerFacts) bool {
	if ns, _ := f.namespace(specs.UserNamespace); ns.Path != "" {
		has, known := f.node.Host.HasRoot(ns.Path)
		if known || len(f.spec.Linux.UIDMappings) == 0 {
			return has || !known
		}
	}
	return slices.ContainsFunc(f.spec.Linux.UIDMappings,
		func(m specs.LinuxIDMapping) bool { return m.HostID == 0 && m.Size > 0 })
}

// capabilities finds capabilities that need no mount. A kernel module runs as the kernel. A file
// handle opens any file of a file system that the container has a part of (open_by_handle_at(2)). A
// container that may mount mounts the cgroup file system and leaves its own cgroup, or rewrites its
// devices on version 1.
func capabilities(f *containerFacts, found *vectorResult) {
	for _, c := range []capability{capSysModule, capDACReadSearch, capSysAdmin} {
		if f.has(c) {
			found.root("capability:" + c.name)
		}
	}
}

// rawDisks finds device rules by which the container can write to the node's disks: a wildcard of
// block devices, and with CAP_SYS_ADMIN the device mapper's control node (misc, 10:236), which
// makes new names for any disk. A single block device is a volume.
func rawDisks(f *containerFacts, found *vectorResult) {
	for i, r := range f.spec.Linux.Resources.Devices {
		wild := kind(r.Type) == "b" && (number(r.Major) == wildcard || number(r.Minor) == wildcard) &&
			strings.Contains(access(r.Access), "w")
		mapper := kind(r.Type) == "c" && number(r.Major) == 10 && number(r.Minor) == 236 && f.sysAdmin
		if r.Allow && (wild || mapper) {
			found.root("rule:" + digits(int64(i)))
		}
	}
}

// rootByRoot reports whether the container's own root makes its root that of the node. It can write
// to all of it.
func rootByRoot(f *containerFacts, by hostpath.Access, found *vectorResult) bool {
	by.Write = true
	p := f.paths.Resolve(f.root)
	if f.paths.Governs(p, &by) {
		return true
	}
	others, err := f.rootElsewhere(p)
	return governElsewhere(f, others, err, "mount:", &by, found)
}

// rootBy reports whether a mount makes root in the container root on the node.
func rootBy(f *containerFacts, i int, by hostpath.Access, found *vectorResult) bool {
	m := &f.spec.Mounts[i]
	isBind := IsBind(*m)
	if isBind && bindMakesRoot(f, i, by, found) {
		return true
	}
	switch {
	case !by.Rooted && m.Type != "overlay": // a group may still own a layer of an overlay
		return false
	case m.Type == "cgroup", m.Type == "cgroup2", m.Type == "sysfs":
		return !readOnly(m)
	case slices.Contains(m.Options, "remount") && !readOnly(m): // makes what is there writable again
		destination := filepath.Clean("/" + m.Destination)
		return hostpath.Within(destination, "/sys") || hostpath.Within(destination, "/proc")
	case isBind, slices.Contains(kernelTypes, m.Type), m.Type == "devtmpfs":
		return false
	}
	return bringsRoot(f, m, by, found)
}

// bindMakesRoot examines each place that a bind mount may bring.
func bindMakesRoot(f *containerFacts, i int, by hostpath.Access, found *vectorResult) bool {
	m := &f.spec.Mounts[i]
	by.Write, by.WriteBelow = writable(m)
	propagates, propagatesBelow := propagation(f.spec.Linux.RootfsPropagation, m)
	by.Write, by.WriteBelow = by.Write || propagates, by.WriteBelow || propagatesBelow
	for _, p := range f.sources.of(i) {
		if sourceMakesRoot(f, "mount:"+m.Destination, m, p, &by, found) {
			return true
		}
	}
	return false
}

// sourceMakesRoot examines a file or directory of the host that a mount brings, at each of its
// places.
func sourceMakesRoot(f *containerFacts, vector string, m *specs.Mount, p hostpath.Place, by *hostpath.Access,
	found *vectorResult) bool {
	if f.paths.MakesRoot(p, by) {
		return true
	}
	others, err := f.elsewhere(p, recursive(m))
	return governElsewhere(f, others, err, vector, by, found)
}

// bringsRoot examines a file system of another kind: one of a disk of the node, or an overlay over
// what governs the node.
func bringsRoot(f *containerFacts, m *specs.Mount, by hostpath.Access, found *vectorResult) bool {
	if m.Source != "" && slices.ContainsFunc(f.sources.named(m.Source),
		func(p hostpath.Place) bool { return p.Mode&unix.S_IFMT == unix.S_IFBLK }) {
		return true
	}
	for _, option := range m.Options {
		by.Write = strings.HasPrefix(option, "upperdir=") // all writes go there
		for _, dir := range directories(option, m.Type == "overlay") {
			for _, p := range f.sources.named(dir) {
				if f.paths.Governs(p, &by) {
					return true
				}
				others, err := f.elsewhere(p, false)
				if governElsewhere(f, others, err, "mount:", &by, found) {
					return true
				}
			}
		}
	}
	return false
}

// governElsewhere reports whether one of a file's other places makes the container root on the
// node. If they are unknown, one may.
func governElsewhere(f *containerFacts, others []hostpath.Alias, err error, vector string,
	by *hostpath.Access,
	found *vectorResult) bool {
	if err != nil {
		found.note(vector + " may be another place of the node: " + err.Error())
		return true
	}
	return slices.ContainsFunc(others, func(a hostpath.Alias) bool {
		return f.paths.MakesRoot(a.Place, by) ||
			a.Inside && f.paths.InLedger(a.Path) && f.paths.Lets(a.Path, by)
	})
}

// writable reports whether a mount can be written to at its top, and whether other file systems
// below come along and can be written to. Of a recursive mount "ro" makes only the top read-only,
// and file systems below stay as they are (mount_setattr(2)); "rro" makes all of it read-only.
func writable(m *specs.Mount) (top, below bool) {
	return !readOnly(m), slices.Contains(m.Options, "rbind") && last(m, "rro", "rrw") != "rro"
}

// propagation reports whether what the container's spec mounts onto a bind mount is mounted on the
// node as well, at the mount's top and on other file systems that come along. That replaces the
// node's files and stays, also where the mount is read-only. The runtime clones the node's mounts,
// which are shared with it until something makes the clone private or a slave: the root's
// propagation, rslave or rprivate if the spec names none, and then the mount's. Without "r" that
// makes only one mount so, and leaves the others shared. Since 1.29 crun clones a mount before it
// applies the root's, unless the mount is to be private.
func propagation(ofRoot string, m *specs.Mount) (top, below bool) {
	cut, cutBelow := false, false
	shared := !slices.Contains([]string{"", "rslave", "rprivate", "runbindable"}, ofRoot)
	for _, option := range m.Options {
		switch option {
		case "shared", "rshared":
			shared = true
		case "slave", "unbindable":
			cut, shared = true, true
		case "private":
			cut = true
		case "rslave", "rprivate", "runbindable":
			cut, cutBelow = true, true
		}
	}
	return shared && !cut, shared && !cutBelow && recursive(m)
}

// readOnly reports whether every runtime makes a mount read-only at its top. Of options that
// contradict each other runc obeys the last, and those for all mounts below are applied after the
// others.
func readOnly(m *specs.Mount) bool {
	switch last(m, "rro", "rrw") {
	case "rro":
		return true
	case "rrw":
		return false
	}
	return last(m, "ro", "rw") == "ro"
}

// last returns the last of a mount's options that is one of these, "" without one.
func last(m *specs.Mount, options ...string) (found string) {
	for _, option := range m.Options {
		if slices.Contains(options, option) {
			found = option
		}
	}
	return found
}
