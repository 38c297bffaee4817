package containers

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/gpuledger/gpuledger/internal/host"
)

// MakeCgroup makes a cgroup below that of a process, in the hierarchy in which Populated looks. It
// returns its directory, and its path from the root of the hierarchy.
func MakeCgroup(h host.Host, pid int, name string) (dir, path string, err error) {
	if err := nodesCgroups(h); err != nil {
		return "", "", err
	}
	own, err := guarded(h, pid)
	if err != nil {
		return "", "", err
	}
	path = filepath.Join(own, name)
	dir = CgroupDir(h, path)
	if err = os.Mkdir(dir, 0o755); err == nil {
		err = os.Chmod(dir, 0o755) // whatever the umask is: programs read the limits of their cgroups
	}
	return dir, path, err
}

// CgroupDir is the directory of a cgroup, by its path from the root of the hierarchy in which
// Populated looks. Unlike there, that root has one, too.
func CgroupDir(h host.Host, path string) string {
	root, _ := host.CgroupRoot(h)
	return filepath.Join(root, path)
}

// guarded is the cgroup of a process in that hierarchy.
func guarded(h host.Host, pid int) (string, error) {
	const most = 64 << 10 // bytes
	lines, err := h.Cgroups(pid, most)
	if err != nil {
		return "", err
	}
	controller := ""
	if _, v1 := host.CgroupRoot(h); v1 {
		controller = "devices"
	}
	for l := range host.CgroupLines(lines) {
		if l.Has(controller) {
			return l.Path, nil
		}
	}
	return "", errors.New("the process is in no hierarchy of cgroups that is mounted")
}

// Join moves a process into a cgroup. The kernel takes a pid, which may be another process's by the
// time that it is written. is reports whether it still is the process's. If it is not after the
// move, the process that was moved instead goes to where its parent is, as a new process does.
func Join(h host.Host, dir string, pid int, is func() bool) error {
	text := []byte(strconv.Itoa(pid))
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), text, 0); err != nil {
		return err
	}
	if is() {
		return nil
	}
	err := errors.New("the process has ended")
	if _, parent, gone := h.Process(pid); gone == nil {
		path, e := guarded(h, parent)
		if e == nil {
			e = os.WriteFile(filepath.Join(CgroupDir(h, path), "cgroup.procs"), text, 0)
		}
		err = errors.Join(err, e)
	}
	return err
}
