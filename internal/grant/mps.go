package grant

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"slices"
	"strings"
)

// MPSDaemon is a control daemon of NVIDIA's Multi-Process Service, with its servers, as gpuledgerd
// last found it. A client has one daemon, so the GPUs of a grant have one together, and every grant
// of a daemon is over exactly its GPUs.
type MPSDaemon struct {
	Version int       `json:"version"`
	BootID  string    `json:"boot_id"`
	GPUs    []string  `json:"gpus"`    // by UUID, in the order of its device ordinals
	Daemon  Process   `json:"daemon"`  // nvidia-cuda-mps-control
	Servers []Process `json:"servers"` // nvidia-cuda-mps-server
	UID     int       `json:"uid"`     // whose processes the servers take as clients,
	Anybody bool      `json:"anybody"` // or those of every user, as root's
	// device and inode of its control socket when it was proven; zeros: not known
	Socket [2]uint64 `json:"socket"`
	// by UUID: what it says that a client process may allocate at most
	Limits  map[string]Bytes `json:"limits"`
	Threads int              `json:"threads"` // likewise, percent of each GPU's compute
	Problem string           `json:"problem"` // why no client may start now; "" when it may
}

// PipeInContainer is where a container of a grant finds its daemon: the place where programs look
// that lost their environment.
const PipeInContainer = "/tmp/nvidia-mps"

// MPSControl is NVIDIA's program that a daemon is.
const MPSControl = "nvidia-cuda-mps-control"

// HasMPS reports whether the driver's files have it. Without, nothing runs in mode mps.
func (d Driver) HasMPS() bool {
	return slices.ContainsFunc(d.Files,
		func(f DriverFile) bool { return f.Kind == FileBinary && filepath.Base(f.Target) == MPSControl })
}

// MPSName is the name of the daemon that serves these GPUs: short, because a socket's path may have
// 107 bytes.
func MPSName(uuids []string) string {
	sum := sha256.Sum256([]byte(strings.Join(slices.Sorted(slices.Values(uuids)), ",")))
	return hex.EncodeToString(sum[:6])
}

// MPSDir is where it lives below the run directory: pipe, shm and log are directories there.
func MPSDir(runDir, name string) string { return filepath.Join(runDir, "mps", name) }

// UUIDs are the grant's GPUs, by index.
func (g Grant) UUIDs() []string {
	uuids := make([]string, len(g.GPUs))
	for i, s := range g.GPUs {
		uuids[i] = s.UUID
	}
	return uuids
}
