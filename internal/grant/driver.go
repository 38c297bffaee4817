package grant

import (
	"path/filepath"
	"slices"
	"strings"
)

// DriverFile is one file of the driver's user space. The inventory lists them, so that a create
// searches for none.
type DriverFile struct {
	Path       string     `json:"path"`                // below Driver.Root, with every link resolved there
	Kind       FileKind   `json:"kind"`                // what it is
	Capability Capability `json:"capability,omitzero"` // which use of the GPU needs it; "": every use
	// where the driver's installation has it: the directory of a library or module, otherwise the
	// path
	Target string `json:"target"`
	// of a library or module: the names by which programs find it below such a directory
	Names []string `json:"names,omitempty"`
	Bits  int      `json:"bits,omitzero"` // of a library: 64 or 32
}

// Source returns the path of a driver's file on the node. Only the root may be unclean. A create
// joins tens of paths, so the rest is not cleaned again.
func (d Driver) Source(f DriverFile) string {
	return strings.TrimSuffix(filepath.Clean(d.Root), "/") + "/" + strings.TrimPrefix(f.Path, "/")
}

// Sources returns the paths on the node of all driver files that containers get. It leaves out
// sockets: daemons of the node listen on them.
func (d Driver) Sources() Sources {
	s := Sources{root: strings.TrimSuffix(filepath.Clean(d.Root), "/"),
		paths: make(map[string]bool, len(d.Files))}
	for _, f := range d.Files {
		if f.Kind != FileSocket {
			s.paths[strings.TrimPrefix(f.Path, "/")] = true
		}
	}
	return s
}

// Sources is a set of paths on the node. The zero value is empty.
type Sources struct {
	root  string
	paths map[string]bool // below the root
}

// Has reports whether the set has this path, compared as text.
func (s Sources) Has(path string) bool {
	below, found := strings.CutPrefix(path, s.root)
	return found && strings.HasPrefix(below, "/") && s.paths[below[1:]]
}

// DriverFileOptions are the options of every mount of a driver file: read-only, without setuid bits
// and device nodes. All mounts share the slice; its capacity is clipped, so append copies it.
var DriverFileOptions = slices.Clip([]string{"ro", "nosuid", "nodev", "bind"})

// FileKind is the kind of a driver file.
type FileKind string

// The kinds of driver files.
const (
	FileLibrary  FileKind = "library"
	FileBinary   FileKind = "binary"
	FileFirmware FileKind = "firmware"
	FileSocket   FileKind = "socket"
	FileConfig   FileKind = "config"
	FileModule   FileKind = "module" // of the X server
)

// Capability is a value of NVIDIA_DRIVER_CAPABILITIES: a part of the driver that a container wants.
type Capability string

// The capabilities by which driver files are grouped (container-toolkit documentation, "Driver
// Capabilities").
const (
	Compute  Capability = "compute"
	Utility  Capability = "utility"
	Graphics Capability = "graphics"
	Video    Capability = "video"
	Display  Capability = "display"
	NGX      Capability = "ngx"
)

// Layout says where the loaders of an image look for libraries: a directory for 64-bit ones and one
// for 32-bit ones, each a path without links. "": the image has no such loader, so it cannot use
// the driver's libraries.
type Layout struct {
	Lib64, Lib32 string
	Cache        bool // the loader reads /etc/ld.so.cache; those of musl and NixOS do not
	// no process can write to the root file system, not even the runtime that makes mount points
	// there
	ReadOnly bool
	Problem  string // why the layout is unknown; "" if it is known
	// the image was not read, because the container is known without it, as by NRI; the node's own
	// layout is used
	Unseen bool
}
