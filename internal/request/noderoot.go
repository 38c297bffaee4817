package request

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// guard is a path of the host by which a container can change who decides about containers, or what was decided. It is
// reached by a mount of itself or of a parent.
type guard struct {
	path  string
	below bool // what lies below counts as well: of other directories that is where ordinary volumes are
	names int  // what lies up to so many names below counts: one container's part as a whole, but not the files in it that engines mount
	write bool // only a mount that can be written through; a socket is as good read-only
	moves bool // administrators put a link there and the directory on another disk
}

// guards are what the engines, the kubelet, systemd and CDI keep where they keep it by default, by real paths (/var/run is
// /run). docs/adr/0011 says why each is here.
var guards = []guard{
	// who starts containers, as root, for whoever asks
	{path: "/run/containerd/containerd.sock"}, {path: "/run/containerd/containerd.sock.ttrpc"}, {path: "/run/containerd/s"},
	{path: "/run/crio/crio.sock"}, {path: "/run/docker.sock"}, {path: "/run/docker/containerd/containerd.sock"}, {path: "/run/podman/podman.sock"},
	{path: "/run/k3s/containerd/containerd.sock"}, {path: "/run/cri-dockerd.sock"}, {path: "/run/buildkit/buildkitd.sock"}, {path: "/run/nri/nri.sock"},
	{path: "/run/systemd/private"}, {path: "/run/dbus/system_bus_socket"},
	{path: "/var/lib/kubelet/device-plugins", below: true}, {path: "/var/lib/kubelet/plugins"}, {path: "/var/lib/kubelet/plugins_registry"},
	// what they obey
	{path: "/etc/gpuledger", below: true, write: true}, {path: "/etc/containerd", below: true, write: true}, {path: "/etc/crio", below: true, write: true},
	{path: "/etc/docker", below: true, write: true}, {path: "/etc/containers", below: true, write: true}, {path: "/etc/nvidia-container-runtime", below: true, write: true},
	{path: "/etc/cdi", below: true, write: true}, {path: "/run/cdi", below: true, write: true}, {path: "/usr/share/containers", below: true, write: true},
	{path: "/etc/kubernetes", below: true, write: true}, {path: "/etc/rancher", below: true, write: true}, {path: "/etc/systemd", below: true, write: true},
	{path: "/run/systemd/system", below: true, write: true}, {path: "/run/systemd/transient", below: true, write: true}, {path: "/usr/lib/systemd", below: true, write: true},
	{path: "/etc/cni", below: true, write: true}, {path: "/opt/cni/bin", below: true, write: true}, {path: "/opt/nri", below: true, write: true},
	// what they run
	{path: "/usr/bin", write: true}, {path: "/usr/sbin", write: true}, {path: "/usr/libexec", write: true},
	{path: "/usr/local/bin", write: true}, {path: "/usr/local/sbin", write: true},
	// what they and the runtimes know of containers: bundles, states, layers
	{path: "/run/runc", below: true, write: true}, {path: "/run/crun", below: true, write: true}, {path: "/run/containerd/runc", below: true, write: true},
	{path: "/run/docker/runtime-runc", below: true, write: true}, {path: "/run/containerd/io.containerd.runtime.v2.task", below: true, write: true},
	{path: "/run/containerd", write: true}, {path: "/var/lib/containerd", write: true, moves: true}, {path: "/run/docker", write: true}, {path: "/var/lib/docker", write: true, moves: true},
	{path: "/run/crio", write: true}, {path: "/var/lib/crio", write: true, moves: true}, {path: "/run/containers", write: true}, {path: "/run/libpod", write: true},
	{path: "/var/lib/containers", write: true, moves: true}, {path: "/var/lib/containers/storage", write: true, moves: true}, {path: "/var/lib/kubelet", write: true, moves: true},
	{path: "/var/lib/containerd/io.containerd.metadata.v1.bolt", below: true, write: true}, {path: "/var/lib/containerd/io.containerd.content.v1.content", below: true, write: true},
	{path: "/var/lib/kubelet/config.yaml", write: true}, {path: "/var/lib/kubelet/kubeadm-flags.env", write: true},
	// the kernel's own: a program for dumped cores runs as root (core(5)), and so does one for uevents
	{path: "/proc/sys/kernel/core_pattern", write: true}, {path: "/sys/kernel/uevent_helper", write: true},
	// every device of the node: a GPU is detached, reset and mapped there, without its driver (PCI/sysfs-pci.rst), given to another one
	// (drivers/*/{bind,unbind,new_id}, driver_override) and taken off the bus; what its driver allows is a module's parameter
	{path: "/sys/devices", below: true, write: true}, {path: "/sys/bus", below: true, write: true}, {path: "/sys/module", below: true, write: true},
	{path: "/proc/bus/pci", below: true, write: true}, {path: "/proc/driver/nvidia", below: true, write: true},
}

// privateDirs hold what engines make for a container itself. Nothing that governs the node lies below.
var privateDirs = []string{
	"/var/lib/kubelet/pods", "/run/containerd/io.containerd.grpc.v1.cri", "/var/lib/containerd/io.containerd.grpc.v1.cri", "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs",
	"/var/lib/docker/volumes", "/var/lib/docker/containers", "/var/lib/docker/overlay2", "/var/lib/docker/rootfs",
	"/var/lib/containers/storage/volumes", "/var/lib/containers/storage/overlay", "/var/lib/containers/storage/overlay-containers", "/run/containers/storage/overlay-containers",
}

// stores are where engines keep bundles, layers and volumes of all containers. Who writes to one of them rewrites what others
// are made of; what a container's own engine mounts lies deeper.
var stores = []guard{
	{path: "/var/lib/kubelet/pods", names: 1, write: true},
	{path: "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs", write: true}, {path: "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots", write: true},
	{path: "/var/lib/docker/containers", names: 1, write: true}, {path: "/var/lib/docker/overlay2", write: true}, {path: "/var/lib/docker/overlay2/l", write: true},
	{path: "/var/lib/docker/rootfs", names: 1, write: true}, {path: "/var/lib/docker/volumes", write: true},
	{path: "/var/lib/containers/storage/overlay", write: true}, {path: "/var/lib/containers/storage/overlay/l", write: true}, {path: "/var/lib/containers/storage/volumes", write: true},
	{path: "/var/lib/containers/storage/overlay-containers", names: 2, write: true}, {path: "/run/containers/storage/overlay-containers", names: 2, write: true},
}

// programs are what starts containers or is started for each, as root. Mounted writable, one of them runs anything; their
// directories are guards.
var programs = []string{"runc", "crun", "containerd", "containerd-shim", "containerd-shim-runc-v1", "containerd-shim-runc-v2", "dockerd", "docker-init", "docker-proxy", "crio", "crio-conmon", "conmon",
	"conmonrs", "podman", "kubelet", "pinns", "netavark", "aardvark-dns", "gpuledger", "gpuledger-runtime", "gpuledger-hook", "gpuledgerd", "nvidia-ctk", "nvidia-cdi-hook",
	"nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-container-cli", "k3s", "systemctl", "modprobe", "kmod"}

var programDirs = []string{"/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/usr/libexec", "/usr/libexec/crio", "/usr/libexec/podman", "/usr/lib/podman", "/bin", "/sbin", "/usr/local/nvidia/toolkit"}

// isProgram reports whether a file is a program of those by its place.
func isProgram(path string) bool {
	return slices.Contains(programs, filepath.Base(path)) && slices.Contains(programDirs, filepath.Dir(path))
}

// isPrivate reports whether a real path is a container's own, as most mounts of most containers are.
func (f *finder) isPrivate(path string) bool {
	return f.inBundle(path) || isPrivatePlace(path)
}

// isPrivatePlace reports whether a path is some container's.
func isPrivatePlace(path string) bool {
	return slices.ContainsFunc(privateDirs, func(dir string) bool { return path != dir && within(path, dir) })
}

func (f *finder) inBundle(path string) bool {
	return f.bundle != "." && f.bundle != "/" && within(path, f.bundle)
}

// nodeRoot records ways by which the container's root is the node's. They pass: node agents have them, and a device
// rule still stands between them and a GPU until they attack.
func (f *finder) nodeRoot() {
	users := f.userNamespaced() && !f.joinsOurs(specs.UserNamespace)
	switch {
	case users && !f.mapsRoot():
		return
	case !users:
		f.namespaces()
		f.capabilityWays()
	}
	f.rawDisks()
	f.rooted = users || f.becomesRoot()
	if f.root() != "" {
		if p := f.look(f.root()); f.governsNode(p, specs.Mount{}) || f.governsElsewhere(p, specs.Mount{}) {
			f.nodeRootBy("root")
		}
	}
	for i, m := range f.spec.Mounts {
		if !f.isDriverFile(m) && f.rootBy(i, m) {
			f.nodeRootBy("mount:" + m.Destination)
		}
	}
	for i := range f.caller.Descriptors {
		if d := &f.caller.Descriptors[i]; f.handsRoot(d) {
			f.nodeRootBy(descriptorVector(d))
		}
	}
}

// becomesRoot reports whether the container's user is root, or can be taken for root by the files of the node: with a
// capability, with root's group, or by a setuid program of its image, which only noNewPrivileges takes the force out of.
func (f *finder) becomesRoot() bool {
	u := f.spec.Process.User
	return u.UID == 0 || u.GID == 0 || slices.Contains(u.AdditionalGids, 0) || f.has("CAP_DAC_OVERRIDE") || !f.spec.Process.NoNewPrivileges
}

// lets reports whether the container's user can use a guard: as root, or as one of the group that it belongs to, as Docker's
// socket does.
func (f *finder) lets(path string) bool {
	if f.rooted {
		return true
	}
	u, p := f.spec.Process.User, f.look(path)
	return p.exists && (p.GID == u.GID || slices.Contains(u.AdditionalGids, p.GID))
}

//go:noinline
func (f *finder) nodeRootBy(way string) {
	f.request.NodeRoot = append(f.request.NodeRoot, way)
}

// namespaces finds what a container shares with the node: its mounts, where chroot is all that holds it, and processes that are
// not its own. Through /proc/PID/root it gets at the files of whoever runs as the same user with no more capabilities, which is
// most of its neighbours, and has them do what it likes with their GPUs.
func (f *finder) namespaces() {
	if ns, own := f.namespace(specs.MountNamespace); !own || ns.Path != "" {
		f.nodeRootBy("namespace:mount")
	}
	if f.othersPIDs() {
		f.nodeRootBy("namespace:pid")
	}
}

func (f *finder) namespace(kind specs.LinuxNamespaceType) (ns specs.LinuxNamespace, own bool) {
	i := slices.IndexFunc(f.spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == kind })
	if i < 0 {
		return specs.LinuxNamespace{}, false
	}
	return f.spec.Linux.Namespaces[i], true
}

// othersPIDs reports whether the container sees processes of the node, or of another container: without a pid namespace, or by
// joining one. In a pod the engine makes it join that of the pod (shareProcessNamespace), which is its own.
func (f *finder) othersPIDs() bool {
	ns, own := f.namespace(specs.PIDNamespace)
	inPod := f.request.Container.Pod != (grant.Identity{})
	return !own || ns.Path != "" && !(inPod && !f.joinsOurs(specs.PIDNamespace))
}

// joinsOurs reports whether the namespace (pid or user) that a container joins by its path is ours, which is the node's.
func (f *finder) joinsOurs(kind specs.LinuxNamespaceType) bool {
	ns, _ := f.namespace(kind)
	if ns.Path == "" {
		return false
	}
	var theirs, ours unix.Stat_t
	err := unix.Stat(ns.Path, &theirs)
	return err == nil && unix.Stat(filepath.Join(f.node.Host.Proc, "self/ns", string(kind)), &ours) == nil && theirs.Ino == ours.Ino && theirs.Dev == ours.Dev
}

// mapsRoot reports whether a user namespace has the node's root in it. Its capabilities end at the namespace; what root owns
// it may write all the same. Of one that is joined by its path the spec's maps say nothing: runtimes leave them aside. Only where
// that namespace tells nothing, because nobody is in it yet, are they all there is, and without any it may be root's.
func (f *finder) mapsRoot() bool {
	if ns, _ := f.namespace(specs.UserNamespace); ns.Path != "" {
		has, known := f.node.Host.HasRoot(ns.Path)
		if known || len(f.spec.Linux.UIDMappings) == 0 {
			return has || !known
		}
	}
	return slices.ContainsFunc(f.spec.Linux.UIDMappings, func(m specs.LinuxIDMapping) bool { return m.HostID == 0 && m.Size > 0 })
}

// capabilityWays finds capabilities that need no mount: a kernel module runs as the kernel, a file handle opens any file of a
// file system that the container has a part of (open_by_handle_at(2)), and who may mount mounts the cgroup file system and
// leaves its own cgroup, or rewrites its devices on version 1.
func (f *finder) capabilityWays() {
	for _, name := range []string{"CAP_SYS_MODULE", "CAP_DAC_READ_SEARCH"} {
		if f.has(name) {
			f.nodeRootBy("capability:" + name)
		}
	}
	if f.request.SysAdmin {
		f.nodeRootBy("capability:CAP_SYS_ADMIN")
	}
}

// rawDisks finds device rules by which the node's disks can be written: a wildcard of block devices, and with CAP_SYS_ADMIN
// the device mapper's control node (misc, 10:236), which makes new names for any disk. A single block device is a volume.
func (f *finder) rawDisks() {
	for i, r := range f.spec.Linux.Resources.Devices {
		wild := kind(r.Type) == "b" && (number(r.Major) == wildcard || number(r.Minor) == wildcard) && strings.Contains(access(r.Access), "w")
		mapper := kind(r.Type) == "c" && number(r.Major) == 10 && number(r.Minor) == 236 && f.request.SysAdmin
		if r.Allow && (wild || mapper) {
			f.nodeRootBy("rule:" + digits(int64(i)))
		}
	}
}

// rootBy reports whether a mount makes root in the container root on the node.
func (f *finder) rootBy(i int, m specs.Mount) bool {
	if IsBind(m) {
		for _, p := range f.sources(i) {
			if f.makesRoot(p, m) || f.governsElsewhere(p, m) {
				return true
			}
		}
	}
	switch {
	case !f.rooted && m.Type != "overlay": // of which a group may still own a layer
		return false
	case m.Type == "cgroup", m.Type == "cgroup2", m.Type == "sysfs":
		return !readOnly(m)
	case slices.Contains(m.Options, "remount") && !readOnly(m): // makes writable again what is there
		destination := filepath.Clean("/" + m.Destination)
		return within(destination, "/sys") || within(destination, "/proc")
	case IsBind(m), slices.Contains(kernelTypes, m.Type), m.Type == "devtmpfs":
		return false
	}
	return f.bringsRoot(m)
}

// makesRoot judges one place that a bind mount brings along.
func (f *finder) makesRoot(p place, m specs.Mount) bool {
	return f.governsNode(p, m) || f.rooted && (f.writesCgroups(p.Path, m) || within("/proc/1/root", p.Path) && f.has("CAP_SYS_PTRACE"))
}

// bringsRoot judges a file system of another kind: one of a disk of the node, or an overlay over what governs it.
func (f *finder) bringsRoot(m specs.Mount) bool {
	if m.Source != "" && slices.ContainsFunc(f.named(m.Source), func(p place) bool { return p.Mode&unix.S_IFMT == unix.S_IFBLK }) {
		return true
	}
	for _, option := range m.Options {
		upper := strings.HasPrefix(option, "upperdir=") // only there do writes go
		for _, dir := range directories(option, m.Type == "overlay") {
			for _, p := range f.named(dir) {
				layer := specs.Mount{Options: []string{"rro"}}
				if upper {
					layer.Options = nil
				}
				if f.governsNode(p, layer) || f.governsElsewhere(p, layer) {
					return true
				}
			}
		}
	}
	return false
}

// readOnly reports whether every runtime makes a mount read-only at its top: of options that contradict each other runc obeys the
// last, and those for all mounts below are applied after the others.
func readOnly(m specs.Mount) bool {
	switch last(m, "rro", "rrw") {
	case "rro":
		return true
	case "rrw":
		return false
	}
	return last(m, "ro", "rw") == "ro"
}

// readOnlyBelow reports whether a recursive mount is read-only all the way down.
func readOnlyBelow(m specs.Mount) bool { return last(m, "rro", "rrw") == "rro" }

// last is the last of a mount's options that is one of these, "" without one.
func last(m specs.Mount, options ...string) (found string) {
	for _, option := range m.Options {
		if slices.Contains(options, option) {
			found = option
		}
	}
	return found
}

// writesCgroups reports whether a bind mount brings along a writable cgroup file system. Of a recursive one "ro" makes only
// the top read-only, not what is mounted below (mount_setattr(2)); "rro" makes all. On version 1 the top is a tmpfs, and every
// controller is mounted below.
func (f *finder) writesCgroups(source string, m specs.Mount) bool {
	cgroup := filepath.Join(f.node.Host.Sys, "fs/cgroup")
	below := slices.Contains(m.Options, "rbind") && !readOnlyBelow(m)
	switch {
	case source == cgroup:
		return !readOnly(m) || below && !f.look(cgroup+"/cgroup.controllers").exists // which version 2 has, and a tmpfs not
	case within(cgroup, source):
		return below
	}
	return within(source, cgroup) && !readOnly(m)
}

// governsNode reports whether a place is one of the guards or holds one: the ledger's directories and configuration, our
// programs and the runtimes, or what the engines have.
func (f *finder) governsNode(p place, m specs.Mount) bool {
	for _, dir := range []string{f.node.Policy.StateDir, f.node.Policy.RunDir} {
		if dir = f.real(dir); within(dir, p.Path) && f.lets(dir) {
			return true
		}
	}
	w := way{&p, &m, writable(m)}
	if !f.inBundle(p.Path) && f.touchesOne(stores, w) {
		return true
	}
	if f.isPrivate(p.Path) {
		return false
	}
	if w.writable && isProgram(p.Path) && f.writes(w, p.Path) && f.lets(p.Path) {
		return true
	}
	if f.touchesOne(guards, w) || f.touchesOne(f.own(), w) {
		return true
	}
	return p.IsDir() && slices.ContainsFunc(guards, func(g guard) bool {
		if !g.moves {
			return false
		}
		g.path = f.real(g.path)
		return f.touches(&g, w)
	})
}

// way is a place of the host that a mount leads to.
type way struct {
	place    *place
	mount    *specs.Mount
	writable bool // something there can be written to
}

// own are the guards that this node has beside: its configuration, our program, and the runtimes, by the places where they
// really are.
func (f *finder) own() []guard {
	if f.seen.owned != nil {
		return f.seen.owned
	}
	f.seen.owned = []guard{}
	for _, path := range append(f.node.Policy.Runtime.Programs(), f.node.Config, f.node.Program) {
		if path != "" && !filepath.IsAbs(path) {
			path, _ = exec.LookPath(path) // as the wrapper finds the real runtime; where it is not, there is nothing to guard
		}
		if !filepath.IsAbs(path) {
			continue
		}
		for _, path := range slices.Compact([]string{path, f.real(path)}) {
			f.seen.owned = append(f.seen.owned, guard{path: path, write: true})
		}
	}
	return f.seen.owned
}

// touchesOne reports whether a way reaches one of several guards. Each mount of each container is held against some eighty.
func (f *finder) touchesOne(guards []guard, w way) bool {
	for i := range guards {
		if f.touches(&guards[i], w) {
			return true
		}
	}
	return false
}

// touches reports whether a way reaches a guard.
func (f *finder) touches(g *guard, w way) bool {
	path := w.place.Path
	switch {
	case g.write && !w.writable:
		return false
	case within(g.path, path):
	case g.below && within(path, g.path):
	case g.names > 0 && within(path, g.path) && strings.Count(below(path, g.path), "/") < g.names:
	default:
		return false
	}
	return (!g.write || f.writes(w, g.path)) && f.lets(g.path)
}

// writable reports whether anything can be written to by way of a mount. Where it is recursive and only its top read-only, other file
// systems below it stay as they are.
func writable(m specs.Mount) bool {
	return !readOnly(m) || slices.Contains(m.Options, "rbind") && !readOnlyBelow(m)
}

// writes reports whether a path can.
func (f *finder) writes(w way, path string) bool {
	if !w.writable || !readOnly(*w.mount) {
		return w.writable
	}
	below := f.look(path)
	return below.exists && within(below.Path, w.place.Path) && below.Dev != w.place.Dev
}
