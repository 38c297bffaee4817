package grant

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// MPSDaemon is a control daemon of NVIDIA's Multi-Process Service with its servers, as gpuledgerd
// last found it. A client connects to one daemon. So one daemon serves all GPUs of a grant, and all
// grants of a daemon have exactly its GPUs.
type MPSDaemon struct {
	Version int       `json:"version"`
	BootID  string    `json:"boot_id"`
	GPUs    []string  `json:"gpus"`    // UUIDs, in the order of the daemon's device ordinals
	Daemon  Process   `json:"daemon"`  // nvidia-cuda-mps-control
	Servers []Process `json:"servers"` // nvidia-cuda-mps-server
	UID     int       `json:"uid"`     // the user whose processes the servers accept as clients
	Anybody bool      `json:"anybody"` // they accept every user's processes, as a daemon of root can
	// device and inode of its control socket when it was verified; zeros: unknown
	Socket [2]uint64 `json:"socket"`
	// the same of its socket for root, to which programs of root connect first
	Privileged [2]uint64 `json:"privileged"`
	// by UUID: the bytes that it lets a client process allocate
	Limits map[string]Bytes `json:"limits"`
	// percent of each GPU's compute that it gives a client process
	Threads int    `json:"threads"`
	Problem string `json:"problem"` // why no client may start now; "" if it may
	// with a problem: it was started, or told to end, a moment ago, so the problem may be over in a
	// moment
	Starting bool `json:"starting"`
}

// PipeInContainer is the directory in a container in which its processes find the daemon: NVIDIA's
// default, which a process without environment uses.
const PipeInContainer = "/tmp/nvidia-mps"

// The names of NVIDIA's programs: the control daemon, and the server that it starts.
const (
	MPSControl = "nvidia-cuda-mps-control"
	MPSServer  = "nvidia-cuda-mps-server"
)

// MPSSince is the first major version of the driver whose MPS limits the memory of clients (CUDA
// 11.5).
const MPSSince = 495

// Program is the driver's program of this name among its files; false if there is none.
func (d Driver) Program(name string) (DriverFile, bool) {
	i := slices.IndexFunc(d.Files,
		func(f DriverFile) bool { return f.Kind == FileBinary && filepath.Base(f.Target) == name })
	if i < 0 {
		return DriverFile{}, false
	}
	return d.Files[i], true
}

// Major is the driver's major version; 0 if it is unknown.
func (d *Driver) Major() int {
	text, _, _ := strings.Cut(d.Version, ".")
	major, _ := strconv.Atoi(text)
	return major
}

// MPSMissing is the program of MPS that the driver's files lack; "" if they have both.
func (d *Driver) MPSMissing() string {
	control, server := MPSControl, MPSServer
	for i := range d.Files {
		if d.Files[i].Kind != FileBinary {
			continue
		}
		switch filepath.Base(d.Files[i].Target) {
		case MPSControl:
			control = ""
		case MPSServer:
			server = ""
		}
	}
	if control != "" {
		return control
	}
	return server
}

// MPSProblem says why mode mps cannot work with this driver; "" if no reason is known.
func (d *Driver) MPSProblem() string {
	if name := d.MPSMissing(); name != "" {
		return "the driver's files in the inventory have no " + name
	}
	if major := d.Major(); major > 0 && major < MPSSince {
		return "driver " + d.Version + " does not limit the memory of MPS clients, as driver 495 and newer do"
	}
	return ""
}

// MPSUsersSince is the first major version of the driver that is known to have MPS' multi-user
// server, and lastWithoutMPSUsers the last one that was seen without it.
const MPSUsersSince, lastWithoutMPSUsers = 580, 550

// MPSUsersProblem says why this driver cannot serve clients of all users; "" if no reason is known.
func (d *Driver) MPSUsersProblem() string {
	if major := d.Major(); major > 0 && major <= lastWithoutMPSUsers {
		return "driver " + d.Version + " does not know -multiuser-server, which enforcement.mps_users = " +
			"\"all\" needs; driver " + strconv.Itoa(MPSUsersSince) + " does"
	}
	return ""
}

// MPSName returns the name of the daemon for these GPUs. It is short, because the path of a socket
// may have 107 bytes.
func MPSName(uuids []string) string {
	sum := sha256.Sum256([]byte(strings.Join(slices.Sorted(slices.Values(uuids)), ",")))
	return hex.EncodeToString(sum[:6])
}

// MPSDir returns the directory of a daemon below the run directory, with the directories pipe, shm
// and log.
func MPSDir(runDir, name string) string { return filepath.Join(runDir, "mps", name) }

// UUIDs returns the UUIDs of the grant's GPUs, by index.
func (g Grant) UUIDs() []string {
	uuids := make([]string, len(g.GPUs))
	for i, s := range g.GPUs {
		uuids[i] = s.UUID
	}
	return uuids
}
