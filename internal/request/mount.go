package request

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// volumeDevices are the directories below which a mount names a device for NVIDIA's runtime. Its test for them lacks the
// trailing slash, so ours does.
var volumeDevices = []string{"/var/run/nvidia-container-devices", "/run/nvidia-container-devices"}

// kernelTypes are the file systems that engines mount and that bring nothing of the host's files along, whatever their
// source and options say.
var kernelTypes = []string{"proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "bpf", "debugfs", "tracefs", "securityfs", "hugetlbfs", "ramfs", "configfs"}

func (f *finder) mounts() {
	if f.root() != "" {
		p := f.look(f.root())
		if f.isOurs(p.Path) || !f.isPrivate(p.Path) && f.mpsBelow("root", p) || f.anyAlias(p, specs.Mount{}, func(a alias) bool { return f.isOurs(a.Path) || f.mpsBelow("root", a.place) }) {
			f.hit(grant.Hit{Vector: "root", Value: f.spec.Root.Path, Code: grant.GPUSocket, Cover: grant.CoverNever})
		}
		if f.request.Unruled && f.bringsDev(p.Path) {
			f.hit(grant.Hit{Vector: "root", Value: f.spec.Root.Path, Code: grant.GPUBindMount, Cover: grant.CoverNever})
		}
	}
	for i, m := range f.spec.Mounts {
		f.volumeDevice(m)
		if f.isDriverFile(m) {
			continue
		}
		if IsBind(m) {
			f.bind(i, m)
		}
		switch {
		case slices.Contains(kernelTypes, m.Type):
		case m.Type == "devtmpfs":
			f.parentOfNodes("mount:"+m.Destination, m)
		case !slices.Contains(bindTypes, m.Type):
			f.fileSystem(m)
		}
	}
	f.pipeDirectory()
}

// isDriverFile reports whether a mount is as an admission writes it for a file of the driver, of one that the inventory has found: a regular
// file in directories of root's. There are tens in a spec, and the kernel has nothing else to say of them. In the container's own root, as where
// that is the node's, the mounts before it decide what it is.
func (f *finder) isDriverFile(m specs.Mount) bool {
	if !f.node.Files.Has(m.Source) || m.Type != "bind" || !slices.Equal(m.Options, grant.DriverFileOptions) || len(m.UIDMappings)+len(m.GIDMappings) > 0 {
		return false
	}
	root := f.root()
	return root == "" || !within(m.Source, f.real(root))
}

// bindTypes are what stands in the place of a type where the options say bind; the kernel knows no file system of these
// names.
var bindTypes = []string{"", "none", "bind", "rbind"}

// IsBind reports whether a mount brings along what its source is on the host. The type is a convention, the options decide: runc
// takes whatever has such an option for a bind mount, and crun clones the source of whatever has ids of its own, before it looks
// at the type (linux.c, maybe_get_idmapped_mount).
func IsBind(m specs.Mount) bool {
	return m.Type == "bind" || m.Type == "rbind" || len(m.UIDMappings)+len(m.GIDMappings) > 0 || slices.ContainsFunc(m.Options, func(option string) bool {
		return option == "bind" || option == "rbind" || strings.HasPrefix(option, "idmap") || strings.HasPrefix(option, "ridmap")
	})
}

func (f *finder) volumeDevice(m specs.Mount) {
	if !strings.Contains(m.Destination, "nvidia-container-devices") { // as of almost every mount; no way of writing a path hides a name in it
		return
	}
	destination := filepath.Clean("/" + m.Destination)
	for _, dir := range volumeDevices {
		rest, found := strings.CutPrefix(destination, dir)
		if !found {
			continue
		}
		f.deviceList("mount:"+m.Destination, strings.Trim(rest, "/"), grant.Removal{Kind: grant.RemoveMount, Name: m.Destination})
	}
}

// bind judges a bind mount by what its source is on the host, not by its name.
func (f *finder) bind(i int, m specs.Mount) {
	if id := f.node.Policy.RecordOf(m.Source, m.Destination, m.Options); id != "" {
		f.hit(grant.Hit{Vector: "mount:" + m.Destination, Value: m.Source, Code: grant.GPUSocket, Cover: grant.CoverRecord, Grant: id,
			Removal: grant.Removal{Kind: grant.RemoveMount, Name: m.Destination}})
		return
	}
	for _, p := range f.sources(i) {
		if f.source("mount:"+m.Destination, m, m.Source, p) {
			return
		}
	}
}

// source judges a file or directory of the host that a mount brings along, and reports whether it found something.
func (f *finder) source(vector string, m specs.Mount, value string, p place) bool {
	if p.err != nil {
		f.fail(cannotTell(p.Path, p.err))
		return true
	}
	return f.sourceAt(vector, m, value, p) || f.anyAlias(p, m, func(a alias) bool { return f.sourceAt(vector, m, value+" (which is "+a.Path+")", a.place) })
}

// sourceAt judges it at one of its places.
func (f *finder) sourceAt(vector string, m specs.Mount, value string, p place) bool {
	if f.isPlain(p) {
		return false
	}
	if f.isOurs(p.Path) || f.mpsBelow(vector, p) {
		f.hit(grant.Hit{Vector: vector, Value: value, Code: grant.GPUSocket, Cover: grant.CoverNever})
		return true
	}
	if p.Shifting {
		f.hit(grant.Hit{Vector: vector, Value: value + " (" + grant.Elsewhere + ")", Code: grant.GPUBindMount, Cover: grant.CoverNever})
		return true
	}
	if class, major, minor := f.classOf(p); class != "" {
		f.hit(grant.Hit{Vector: vector, Value: value + " (c " + digits(major) + ":" + digits(minor) + ")", Code: grant.GPUBindMount,
			Cover: f.cover(class), Node: grant.Node{Class: class, Minor: int(minor)}, Removal: grant.Removal{Kind: grant.RemoveMount, Name: m.Destination}})
		return true
	}
	if f.opensAny() && f.bringsDev(p.Path) {
		f.parentOfNodes(vector, m)
		return true
	}
	return false
}

// isPlain reports whether a place is a regular file that is nobody's but its owner's, as the tens of a driver's are: of all that source
// looks for it can be nothing.
func (f *finder) isPlain(p place) bool {
	return p.exists && p.Mode&unix.S_IFMT == unix.S_IFREG && !p.Shifting && !f.isOurs(p.Path) &&
		!slices.ContainsFunc(mpsDefaults, func(dir string) bool { return within(p.Path, dir) })
}

// isOurs reports whether a path is in the ledger's directories.
func (f *finder) isOurs(source string) bool {
	if f.ours == nil {
		f.ours = []string{f.real(f.node.Policy.StateDir), f.real(f.node.Policy.RunDir)}
	}
	return slices.ContainsFunc(f.ours, func(dir string) bool { return within(source, dir) })
}

// fileSystem judges the directories that a mount of a file system brings along: an overlay's layers, as Podman's
// `-v DIR:/x:O` makes them, and of any other type whatever path it names.
func (f *finder) fileSystem(m specs.Mount) {
	vector, overlay := "mount:"+m.Destination, m.Type == "overlay"
	for _, option := range m.Options {
		for _, dir := range directories(option, overlay) {
			for _, p := range f.named(dir) {
				if f.source(vector, m, option, p) {
					return
				}
			}
		}
	}
	if overlay || IsBind(m) || m.Source == "" {
		return
	}
	for _, p := range f.named(m.Source) {
		if f.source(vector, m, m.Source, p) {
			return
		}
	}
}

// directories are the paths in one option. An option can hold several, behind commas, where it is handed on as text and not
// by fsconfig(2); an overlay's layers stand behind colons, and a backslash takes the force out of the next character
// (ovl_unescape, fs/overlayfs/params.c). All readings count.
func directories(option string, overlay bool) []string {
	var dirs []string
	parts := []string{option}
	if strings.Contains(option, ",") {
		parts = append(parts, strings.Split(option, ",")...)
	}
	for _, part := range parts {
		key, value, _ := strings.Cut(part, "=")
		layer := overlay && slices.Contains(layerKeys, strings.TrimSuffix(key, "+"))
		for _, dir := range append(strings.Split(value, ":"), value) {
			for _, dir := range slices.Compact([]string{dir, unescaped(dir)}) {
				if dir != "" && (layer || filepath.IsAbs(dir)) {
					dirs = append(dirs, dir)
				}
			}
		}
	}
	return dirs
}

var layerKeys = []string{"lowerdir", "upperdir", "workdir", "datadir"}

func unescaped(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) {
			i++
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// bringsDev reports whether a directory is a parent of the node's devices, or one of them with GPUs' nodes.
func (f *finder) bringsDev(dir string) bool { return within(f.node.Host.Dev, dir) || f.holdsNodes(dir) }

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

// opensAny reports whether a device rule lets GPUs be opened that no exact rule names.
func (f *finder) opensAny() bool {
	return slices.ContainsFunc(f.open, func(o opening) bool { return o.minor == wildcard })
}

// parentOfNodes finds mounts that bring along the host's nodes, but only where a rule lets anything be opened: without
// one each of them answers EPERM, and node agents mount the host's / or /dev for other reasons.
func (f *finder) parentOfNodes(vector string, m specs.Mount) {
	if !f.opensAny() {
		return
	}
	code := f.codeFor(grant.GPUBindMount)
	if f.request.Unruled { // taking the privilege's nodes and rules away would leave it open
		code = grant.GPUBindMount
	}
	f.hit(grant.Hit{Vector: vector, Value: m.Source, Code: code, Cover: grant.CoverDrop})
}
