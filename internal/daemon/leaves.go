package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// leaf is a container's cgroup that the driver limits.
type limitedCgroup struct {
	Cgroup      string        `json:"cgroup"` // from the root of cgroup v2
	Inode       uint64        `json:"inode"`  // of its directory: another of the same name is another's
	Grant       grant.ID      `json:"grant"`
	RuntimeRoot string        `json:"runtime_root"`
	Container   string        `json:"container"`
	GPUs        []grant.Share `json:"gpus"` // what it was given last
	Reduction   reduction     `json:"lowered,omitzero"`

	released bool // not to be held any more: to be cleared, whoever is in it. What makes it so is found out again after a restart
}

// leaves are those that gpuledgerd has given limits to, or was about to: they are written down before a limit is set, so that
// whoever comes after a crash finds what has to be cleared.
type recordFile struct {
	Version int             `json:"version"`
	BootID  string          `json:"boot_id"`
	List    []limitedCgroup `json:"leaves"`
}

const (
	recordName    = "driver-limits.json"
	recordVersion = 1
	maxRecord     = 16 << 20
)

// loadLeaves reads what this boot's daemons wrote. Without a file there are none.
func loadRecord(runDir, boot string) (l recordFile, err error) {
	path := filepath.Join(runDir, recordName)
	data, err := host.ReadFile(path, maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return recordFile{}, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &l)
	}
	switch {
	case err != nil:
		return recordFile{}, fmt.Errorf("cannot read %s: %w; %s", path, err, recordHint)
	case l.BootID != boot: // cgroups die with the boot
		return recordFile{}, nil
	case l.Version != recordVersion:
		return recordFile{}, fmt.Errorf("cannot read %s: its version is %d and this gpuledgerd knows %d; start the gpuledgerd that wrote it, or %s", path, l.Version, recordVersion, recordHint)
	}
	return l, nil
}

// whatToDo: which limits are set is known to nobody then. Those of cgroups that are gone are over.
const recordHint = "remove it when no container with strength driver runs (gpuledger grants), and gpuledgerd goes on"

func (l recordFile) save(runDir, boot string) error {
	l.Version, l.BootID = recordVersion, boot
	data, err := json.Marshal(l, jsontext.WithIndent(" "))
	if err != nil {
		return fmt.Errorf("internal error: cannot encode the driver's limits: %w", err)
	}
	return host.ReplaceFile(filepath.Join(runDir, recordName), append(data, '\n'), 0o600, host.Volatile)
}

// cgroupRoot is where NVML looks cgroups up, and nowhere else.
func cgroupRoot(h host.Host) string { return filepath.Join(h.Sys, "fs/cgroup") }

func (l limitedCgroup) dir(h host.Host) string { return filepath.Join(cgroupRoot(h), l.Cgroup) }

// there reports whether the leaf's own cgroup is there still, and whether processes are in it.
func (l limitedCgroup) exists(h host.Host) (exists, populated bool) {
	if inode, err := inodeOf(l.dir(h)); err != nil || inode != l.Inode {
		return false, false
	}
	events, err := os.ReadFile(filepath.Join(l.dir(h), "cgroup.events"))
	return true, err != nil || !strings.Contains(string(events), "populated 0")
}

func inodeOf(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	return st.Ino, nil
}

// limits are the leaf's as the driver takes them: to be read, or with set to be set.
func (l limitedCgroup) limits(h host.Host, set bool) (asks []grant.CgroupLimit) {
	for _, s := range l.GPUs {
		asks = append(asks, grant.CgroupLimit{Cgroup: l.dir(h), GPU: s.UUID, Hard: s.Memory, Set: set})
	}
	return asks
}

// leafOf is the cgroup of a process. It must be of its own: not the root, and not one that this daemon is in or below.
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
	case own == cgroup || strings.HasPrefix(own, cgroup+"/"):
		return "", fmt.Errorf("its cgroup %s is gpuledgerd's, too", cgroup)
	}
	return cgroup, nil
}

// cgroupOf is a process's cgroup of v2, as the caller's cgroup namespace has it (proc_pid_cgroup(5)).
func cgroupOf(h host.Host, pid int) (string, error) {
	text, err := h.Cgroups(pid, 1<<20)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if path, found := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); found {
			return path, nil
		}
	}
	return "", fmt.Errorf("process %d is in no cgroup of v2", pid)
}
