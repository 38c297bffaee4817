package request

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// volumeDevices are the directories below which a mount names a device for NVIDIA's runtime. Its test for them lacks the
// trailing slash, so ours does.
var volumeDevices = []string{"/var/run/nvidia-container-devices", "/run/nvidia-container-devices"}

func (f *finder) mounts() {
	if r := f.spec.Root; r != nil && f.isOurs(f.resolve(r.Path)) {
		f.hit(grant.Hit{Vector: "root", Value: r.Path, Code: grant.GPUSocket, Cover: grant.CoverNever})
	}
	for _, m := range f.spec.Mounts {
		f.volumeDevice(m)
		switch {
		case m.Type == "overlay":
			f.overlay(m)
		case m.Type == "devtmpfs":
			f.parentOfNodes(m)
		case isBind(m):
			f.bind(m)
		}
	}
}

// isBind: the type is a convention, the options decide.
func isBind(m specs.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

func (f *finder) volumeDevice(m specs.Mount) {
	destination := filepath.Clean("/" + m.Destination)
	for _, dir := range volumeDevices {
		rest, found := strings.CutPrefix(destination, dir)
		if !found || rest == "" {
			continue
		}
		f.deviceList("mount:"+m.Destination, strings.Trim(rest, "/"), grant.Removal{Kind: grant.RemoveMount, Name: m.Destination})
	}
}

// bind judges a bind mount by what its source is on the host, not by its name.
func (f *finder) bind(m specs.Mount) {
	source := f.resolve(m.Source)
	if f.isOurs(source) || servesMPS(source) {
		f.hit(grant.Hit{Vector: "mount:" + m.Destination, Value: m.Source, Code: grant.GPUSocket, Cover: grant.CoverNever})
		return
	}
	if class, major, minor := f.classAt(source); class != "" {
		f.hit(grant.Hit{Vector: "mount:" + m.Destination, Value: m.Source + " (c " + digits(major) + ":" + digits(minor) + ")", Code: grant.GPUBindMount,
			Cover: f.cover(class), Node: grant.Node{Class: class, Minor: int(minor)}, Removal: grant.Removal{Kind: grant.RemoveMount, Name: m.Destination}})
		return
	}
	if within(f.node.Host.Dev, source) || f.holdsNodes(source) {
		f.parentOfNodes(m)
	}
}

// isOurs reports whether a path is in the ledger's directories.
func (f *finder) isOurs(source string) bool {
	return within(source, f.real(f.node.Policy.StateDir)) || within(source, f.real(f.node.Policy.RunDir))
}

// overlay judges the directories that an overlay brings along, as Podman's `-v DIR:/x:O` does.
func (f *finder) overlay(m specs.Mount) {
	for _, option := range m.Options {
		key, value, _ := strings.Cut(option, "=")
		if key != "lowerdir" && key != "upperdir" && key != "workdir" {
			continue
		}
		for _, dir := range strings.Split(value, ":") {
			if dir != "" && f.isOurs(f.resolve(dir)) {
				f.hit(grant.Hit{Vector: "mount:" + m.Destination, Value: option, Code: grant.GPUSocket, Cover: grant.CoverNever})
				return
			}
		}
	}
}

// mpsFiles are what nvidia-cuda-mps-control keeps in its pipe directory. Whoever reaches them reaches the GPUs of the daemon.
var mpsFiles = []string{"control", "control_lock"}

// servesMPS reports whether a path is the pipe directory of an MPS daemon, or its control socket.
func servesMPS(path string) bool {
	for _, dir := range []string{path, filepath.Dir(path)} {
		if dir != path && filepath.Base(path) != mpsFiles[0] {
			continue
		}
		missing := slices.ContainsFunc(mpsFiles, func(name string) bool {
			_, err := os.Lstat(filepath.Join(dir, name))
			return err != nil
		})
		if !missing {
			return true
		}
	}
	return false
}

// holdsNodes reports whether a directory holds a GPU's node, as /dev/dri and /dev/nvidia-caps do.
func (f *finder) holdsNodes(dir string) bool {
	if !within(dir, f.node.Host.Dev) {
		return false
	}
	entries, _ := os.ReadDir(dir) // of what is no directory: none
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		class, _, _ := f.classAt(filepath.Join(dir, e.Name()))
		return class != ""
	})
}

// parentOfNodes finds mounts that bring along the host's nodes, but only where a rule lets anything be opened: without
// one each of them answers EPERM, and node agents mount the host's / or /dev for other reasons.
func (f *finder) parentOfNodes(m specs.Mount) {
	if !slices.ContainsFunc(f.open, func(o opening) bool { return o.minor == wildcard }) {
		return
	}
	f.hit(grant.Hit{Vector: "mount:" + m.Destination, Value: m.Source, Code: f.codeFor(grant.GPUBindMount), Cover: grant.CoverDrop})
}

// resolve gives the real path of a mount's source; runtimes take a relative one from the bundle. What does not exist
// stays as it is: the runtime will refuse it.
func (f *finder) resolve(source string) string {
	if !filepath.IsAbs(source) {
		source = filepath.Join(f.caller.Container.Bundle, source)
	}
	return f.real(source)
}

// real resolves a path, each one once.
func (f *finder) real(path string) string {
	real, known := f.paths[path]
	if !known {
		var err error
		if real, err = host.RealPath(path); err != nil {
			real = filepath.Clean(path)
		}
		f.paths[path] = real
	}
	return real
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// engineSockets and their like make whoever holds them root on the node.
var engineSockets = []string{
	"/run/containerd/containerd.sock", "/var/run/containerd/containerd.sock", "/run/crio/crio.sock", "/var/run/crio/crio.sock",
	"/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock", "/run/k3s/containerd/containerd.sock",
	"/var/lib/kubelet/device-plugins", "/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry",
}

// nodeRoot records mounts by which the container's root is the node's. They pass: node agents have them, and a device
// rule still stands between them and a GPU until they attack.
func (f *finder) nodeRoot() {
	if f.userNamespaced() || f.spec.Process.User.UID != 0 && !f.has("CAP_DAC_OVERRIDE") {
		return
	}
	if r := f.spec.Root; r != nil && f.governsNode(f.resolve(r.Path)) {
		f.request.NodeRoot = append(f.request.NodeRoot, "root")
	}
	for _, m := range f.spec.Mounts {
		own := m.Type == "cgroup" || m.Type == "cgroup2"
		if own && !readOnly(m) || isBind(m) && f.rootBy(m) {
			f.request.NodeRoot = append(f.request.NodeRoot, "mount:"+m.Destination)
		}
	}
}

func (f *finder) rootBy(m specs.Mount) bool {
	source := f.resolve(m.Source)
	return f.governsNode(source) || f.writesCgroups(source, m)
}

func readOnly(m specs.Mount) bool {
	return slices.Contains(m.Options, "ro") || slices.Contains(m.Options, "rro")
}

// writesCgroups reports whether a bind mount brings along a writable cgroup file system. Of a recursive one "ro" makes only
// the top read-only, not what is mounted below (mount_setattr(2)); "rro" makes all.
func (f *finder) writesCgroups(source string, m specs.Mount) bool {
	cgroup := filepath.Join(f.node.Host.Sys, "fs/cgroup")
	if source != cgroup && within(cgroup, source) {
		return slices.Contains(m.Options, "rbind") && !slices.Contains(m.Options, "rro")
	}
	return within(source, cgroup) && !readOnly(m)
}

// governsNode: the host's root, an engine's socket, a parent of our own directories or the kubelet's.
func (f *finder) governsNode(source string) bool {
	for _, dir := range append([]string{f.node.Policy.StateDir, f.node.Policy.RunDir}, engineSockets...) {
		if dir = f.real(dir); within(dir, source) || slices.Contains(engineSockets, source) {
			return true
		}
	}
	return false
}
