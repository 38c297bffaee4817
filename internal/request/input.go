package request

import (
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/hostpath"
)

// Caller is what is known of a container beside its spec.
type Caller struct {
	Container grant.Container // Find fills in Pod
	// CgroupsOff: the engine switched cgroups off, so no device rule takes effect. Only the
	// arguments show it (Podman, crun).
	CgroupsOff bool

	Descriptors []host.Descriptor // the files that the container is handed open

	// RestoresRules: CRIU writes the device rules of its images over those of the spec, on cgroup
	// v1.
	RestoresRules bool
	// RestoredOutside is why processes of a container that is restored may run without its device
	// rules; "": they do not, or it is no restore.
	RestoredOutside string
}

// NodeFacts is what tells GPU devices from other files on this machine.
type NodeFacts struct {
	Host   host.Host
	Policy grant.Policy
	// Majors are those of the driver by its names: of /proc/devices, or of a simulated node's
	// snapshot.
	Majors func() (map[string]int, error)
	DRM    func() (map[int]bool, error) // DRM minors, and whether each is an NVIDIA GPU's

	Taken func() (map[int]bool, error) // majors of character devices that any driver has
	// Cards reports whether an NVIDIA GPU is in the machine, whether or not its driver is loaded.
	// nil: none is.
	Cards func() bool
	Seen  *Seen // what earlier calls of Find looked up; nil: each call looks anew
	// Files are the driver's files that the edits mount. Find does not look at the sources of these
	// mounts again. If it is empty, Find looks at the source of each mount.
	Files   grant.Sources
	Config  string // the configuration file
	Program string // the program that runs
}

// Seen is what calls of Find looked up on the node for one container, in one goroutine; it is gone
// with the container's create. Find of a spec and of the same spec with edits look up the same
// things, and one answer holds for both.
type Seen struct {
	paths   *hostpath.Paths
	numbers numbers
	daemons []pipe         // of MPS; nil until a mount could bring the pipe directory of one
	at      map[string]int // where a directory is in daemons
	unseen  []string       // listed names that count only for a mount above them
	// how many sockets of root and of others were looked at for a daemon, and how many walks led
	// from a mount to directories in daemons
	roots, users, walks int
	// unlisted says why a daemon may be missing in daemons, for the audit log; "" if none is.
	unlisted string
}
