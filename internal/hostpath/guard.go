package hostpath

import (
	"path/filepath"
	"slices"
)

// guard is a path of the node by which a container can change what decides about containers, or
// what was decided. A container reaches it by a mount of the path itself or of a parent.
type guard struct {
	path  string
	below bool // what lies below counts, too; below other guards are ordinary volumes
	// what lies up to so many names below counts: the whole directory of one container, but not the
	// files in it that engines mount
	names int
	write bool // only a mount that can be written to counts; a socket works read-only, too
	moves bool // administrators put a link there and the directory on another disk
}

// guards are what the engines, the kubelet, systemd and CDI use, where it is by default, by real
// paths (/var/run is /run). docs/adr/0011 says why each is here.
var guards = []guard{
	// sockets of what starts containers, as root, for any client
	{path: "/run/containerd/containerd.sock"}, {path: "/run/containerd/containerd.sock.ttrpc"},
	{path: "/run/containerd/s"}, {path: "/run/crio/crio.sock"}, {path: "/run/docker.sock"},
	{path: "/run/docker/containerd/containerd.sock"}, {path: "/run/podman/podman.sock"},
	{path: "/run/k3s/containerd/containerd.sock"}, {path: "/run/cri-dockerd.sock"},
	{path: "/run/buildkit/buildkitd.sock"}, {path: "/run/nri/nri.sock"}, {path: "/run/systemd/private"},
	{path: "/run/dbus/system_bus_socket"}, {path: "/var/lib/kubelet/device-plugins", below: true},
	{path: "/var/lib/kubelet/plugins"}, {path: "/var/lib/kubelet/plugins_registry"},
	// what these programs are configured by
	{path: "/etc/gpuledger", below: true, write: true}, {path: "/etc/containerd", below: true, write: true},
	{path: "/etc/crio", below: true, write: true}, {path: "/etc/docker", below: true, write: true},
	{path: "/etc/containers", below: true, write: true},
	{path: "/etc/nvidia-container-runtime", below: true, write: true},
	{path: "/etc/cdi", below: true, write: true}, {path: "/run/cdi", below: true, write: true},
	{path: "/usr/share/containers", below: true, write: true},
	{path: "/etc/kubernetes", below: true, write: true}, {path: "/etc/rancher", below: true, write: true},
	{path: "/etc/systemd", below: true, write: true},
	{path: "/run/systemd/system", below: true, write: true},
	{path: "/run/systemd/transient", below: true, write: true},
	{path: "/usr/lib/systemd", below: true, write: true}, {path: "/etc/cni", below: true, write: true},
	{path: "/opt/cni/bin", below: true, write: true}, {path: "/opt/nri", below: true, write: true},
	// what they run
	{path: "/usr/bin", write: true}, {path: "/usr/sbin", write: true}, {path: "/usr/libexec", write: true},
	{path: "/usr/local/bin", write: true}, {path: "/usr/local/sbin", write: true},
	// what they and the runtimes know of containers: bundles, states, layers
	{path: "/run/runc", below: true, write: true}, {path: "/run/crun", below: true, write: true},
	{path: "/run/containerd/runc", below: true, write: true},
	{path: "/run/docker/runtime-runc", below: true, write: true},
	{path: "/run/containerd/io.containerd.runtime.v2.task", below: true, write: true},
	{path: "/run/containerd", write: true}, {path: "/var/lib/containerd", write: true, moves: true},
	{path: "/run/docker", write: true}, {path: "/var/lib/docker", write: true, moves: true},
	{path: "/run/crio", write: true}, {path: "/var/lib/crio", write: true, moves: true},
	{path: "/run/containers", write: true}, {path: "/run/libpod", write: true},
	{path: "/var/lib/containers", write: true, moves: true},
	{path: "/var/lib/containers/storage", write: true, moves: true},
	{path: "/var/lib/kubelet", write: true, moves: true},
	{path: "/var/lib/containerd/io.containerd.metadata.v1.bolt", below: true, write: true},
	{path: "/var/lib/containerd/io.containerd.content.v1.content", below: true, write: true},
	{path: "/var/lib/kubelet/config.yaml", write: true},
	{path: "/var/lib/kubelet/kubeadm-flags.env", write: true},
	// the kernel's own: a program for dumped cores runs as root (core(5)), and so does one for
	// uevents
	{path: "/proc/sys/kernel/core_pattern", write: true}, {path: "/sys/kernel/uevent_helper", write: true},
	// every device of the node. Here a GPU is detached, reset and mapped without its driver
	// (PCI/sysfs-pci.rst), given to another driver (drivers/*/{bind,unbind,new_id},
	// driver_override) and taken off the bus. What its driver allows is a parameter of a module.
	{path: "/sys/devices", below: true, write: true}, {path: "/sys/bus", below: true, write: true},
	{path: "/sys/module", below: true, write: true}, {path: "/proc/bus/pci", below: true, write: true},
	{path: "/proc/driver/nvidia", below: true, write: true},
}

// privateDirs hold what engines make for one container. Nothing below them governs the node.
var privateDirs = []string{
	"/var/lib/kubelet/pods", "/run/containerd/io.containerd.grpc.v1.cri",
	"/var/lib/containerd/io.containerd.grpc.v1.cri",
	"/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs", "/var/lib/docker/volumes",
	"/var/lib/docker/containers", "/var/lib/docker/overlay2", "/var/lib/docker/rootfs",
	"/var/lib/containers/storage/volumes", "/var/lib/containers/storage/overlay",
	"/var/lib/containers/storage/overlay-containers", "/run/containers/storage/overlay-containers",
}

// stores are where engines keep the bundles, layers and volumes of all containers. A container that
// writes to one of them changes what others are made of; what a container's own engine mounts lies
// deeper.
var stores = []guard{
	{path: "/var/lib/kubelet/pods", names: 1, write: true},
	{path: "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs", write: true},
	{path: "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots", write: true},
	{path: "/var/lib/docker/containers", names: 1, write: true},
	{path: "/var/lib/docker/overlay2", write: true}, {path: "/var/lib/docker/overlay2/l", write: true},
	{path: "/var/lib/docker/rootfs", names: 1, write: true}, {path: "/var/lib/docker/volumes", write: true},
	{path: "/var/lib/containers/storage/overlay", write: true},
	{path: "/var/lib/containers/storage/overlay/l", write: true},
	{path: "/var/lib/containers/storage/volumes", write: true},
	{path: "/var/lib/containers/storage/overlay-containers", names: 2, write: true},
	{path: "/run/containers/storage/overlay-containers", names: 2, write: true},
}

// programs start containers or are started for each, as root. A container that can write to one of
// them runs any program as root. Their directories are guards.
var programs = []string{
	"runc", "crun", "containerd", "containerd-shim", "containerd-shim-runc-v1", "containerd-shim-runc-v2",
	"dockerd", "docker-init", "docker-proxy", "crio", "crio-conmon", "conmon", "conmonrs", "podman",
	"kubelet", "pinns", "netavark", "aardvark-dns", "gpuledger", "gpuledger-runtime", "gpuledger-hook",
	"gpuledgerd", "nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-runtime",
	"nvidia-container-runtime-hook", "nvidia-container-cli", "k3s", "systemctl", "modprobe", "kmod",
}

var programDirs = []string{
	"/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/usr/libexec", "/usr/libexec/crio",
	"/usr/libexec/podman", "/usr/lib/podman", "/bin", "/sbin", "/usr/local/nvidia/toolkit",
}

// isProgram reports whether a file is one of programs, by its path.
func isProgram(path string) bool {
	return slices.Contains(programs, filepath.Base(path)) && slices.Contains(programDirs, filepath.Dir(path))
}

// IsPrivate reports whether a real path is a container's own, as most mounts of most containers
// are: in its bundle, or among what engines make for containers.
func IsPrivate(path, bundle string) bool { return inBundle(path, bundle) || isPrivatePlace(path) }

// isPrivatePlace reports whether a path is among what engines make for containers.
func isPrivatePlace(path string) bool {
	return slices.ContainsFunc(privateDirs, func(dir string) bool { return path != dir && Within(path, dir) })
}

// inBundle reports whether a path is in a clean bundle.
func inBundle(path, bundle string) bool {
	return bundle != "." && bundle != "/" && Within(path, bundle)
}
