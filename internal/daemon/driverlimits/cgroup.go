package driverlimits

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// limitedCgroup is a container's cgroup with limits of the driver.
type limitedCgroup struct {
	Cgroup string `json:"cgroup"` // from the root of cgroup v2
	// of its directory: a new one of the same name is another cgroup
	Inode       uint64        `json:"inode"`
	Grant       grant.ID      `json:"grant"`
	RuntimeRoot string        `json:"runtime_root"`
	Container   string        `json:"container"`
	GPUs        []grant.Share `json:"gpus"` // as last set
	Reduction   reduction     `json:"lowered,omitzero"`

	// to be cleared, even with processes in it; not saved, because a new gpuledgerd finds it out
	// again
	released bool
}

func (l limitedCgroup) dir(h host.Host) string { return filepath.Join(cgroupRoot(h), l.Cgroup) }

// cgroupRoot is where NVML looks cgroups up, and nowhere else.
func cgroupRoot(h host.Host) string { return filepath.Join(h.Sys, "fs/cgroup") }

func inodeOf(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	return st.Ino, nil
}

// ownCgroupOf is the cgroup of a process. It must be the container's own: not the root, and not one
// that this daemon is in or below.
func ownCgroupOf(h host.Host, pid int) (string, error) {
	cgroup, err := cgroupOf(h, pid)
	if err != nil {
		return "", err
	}
	own, err := cgroupOf(h, os.Getpid())
	switch {
	case err != nil:
		return "", err
	case cgroup == "/" || strings.HasPrefix(cgroup, "/.."):
		return "", fmt.Errorf("its cgroup is %s, which is not its own", cgroup)
	case host.Within(own, cgroup):
		return "", fmt.Errorf("its cgroup %s is gpuledgerd's, too", cgroup)
	}
	return cgroup, nil
}

// cgroupOf is a process's cgroup of v2, as this cgroup namespace shows it (proc_pid_cgroup(5)).
func cgroupOf(h host.Host, pid int) (string, error) {
	text, err := h.Cgroups(pid, 1<<20)
	if err != nil {
		return "", err
	}
	for l := range host.CgroupLines(text) {
		if l.Has("") {
			return l.Path, nil
		}
	}
	return "", fmt.Errorf("process %d is in no cgroup of v2", pid)
}

// isOf reports whether the cgroup is that of a container.
func (l limitedCgroup) isOf(runtimeRoot, container string) bool {
	return l.RuntimeRoot == runtimeRoot && l.Container == container
}

// exists reports whether the cgroup still exists, and whether processes are in it.
func (l limitedCgroup) exists(h host.Host) (exists, populated bool) {
	if inode, err := inodeOf(l.dir(h)); err != nil || inode != l.Inode {
		return false, false
	}
	events, err := os.ReadFile(filepath.Join(l.dir(h), "cgroup.events"))
	return true, err != nil || !strings.Contains(string(events), "populated 0")
}

// limits are the cgroup's limits as the driver takes them, to be read, or with set to be set.
func (l limitedCgroup) limits(h host.Host, set bool) (asks []grant.CgroupLimit) {
	for _, s := range l.GPUs {
		asks = append(asks, grant.CgroupLimit{Cgroup: l.dir(h), GPU: s.UUID, Hard: s.Memory, Set: set})
	}
	return asks
}
