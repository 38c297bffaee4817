package grant

import (
	"path/filepath"
	"slices"
	"strings"
)

// DriverFile is one file of the driver's user space, found ahead of time: a create looks nothing
// up.
type DriverFile struct {
	Path       string     `json:"path"`                // below Driver.Root, every link resolved there
	Kind       FileKind   `json:"kind"`                // what it is
	Capability Capability `json:"capability,omitzero"` // what it is for; none: for every use of the GPU
	// where the driver's installation has it: of a library or module its directory, else the path
	Target string `json:"target"`
	// of a library or module: how programs find it, below such a directory
	Names []string `json:"names,omitempty"`
	Bits  int      `json:"bits,omitzero"` // of a library: 64 or 32
}

// Source is where a file of the driver is on the node. Only the root can be written in another way
// than filepath.Clean's: a create joins tens.
func (d Driver) Source(f DriverFile) string {
	return strings.TrimSuffix(filepath.Clean(d.Root), "/") + "/" + strings.TrimPrefix(f.Path, "/")
}

// Sources are where all of the driver's files are on the node that containers get. Sockets are
// none: behind them are daemons of the node's.
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

// Sources are paths of the node. The zero value has none.
type Sources struct {
	root  string
	paths map[string]bool // below the root
}

// Has reports whether a path, as it is written, is one of them.
func (s Sources) Has(path string) bool {
	below, found := strings.CutPrefix(path, s.root)
	return found && strings.HasPrefix(below, "/") && s.paths[below[1:]]
}

// DriverFileOptions are the options of every mount of a driver's file: the container neither
// changes it nor gains by it. All mounts share them; who adds one gets a copy.
var DriverFileOptions = slices.Clip([]string{"ro", "nosuid", "nodev", "bind"})

// FileKind is what a driver file is.
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

// Capability is a value of NVIDIA_DRIVER_CAPABILITIES: what part of the driver a container wants.
type Capability string

// The capabilities that the driver's files are told apart by (container-toolkit documentation,
// "Driver Capabilities").
const (
	Compute  Capability = "compute"
	Utility  Capability = "utility"
	Graphics Capability = "graphics"
	Video    Capability = "video"
	Display  Capability = "display"
	NGX      Capability = "ngx"
)

// Layout is where an image's own loaders look for libraries: a directory for 64-bit ones and one
// for 32-bit ones, each as a path without links. Empty: the image has no such loader, so it cannot
// use the driver's libraries.
type Layout struct {
	Lib64, Lib32 string
	Cache        bool // the loader asks /etc/ld.so.cache: musl's does not, nor does NixOS's glibc
	// nobody can write to the root file system, not even the runtime that makes mount points there
	ReadOnly bool
	Problem  string // why none of this can be told; "" when it can
	// nobody could look: the container is known without its image, as by NRI. The node's own layout
	// is taken
	Unseen bool
}
