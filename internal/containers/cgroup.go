package containers

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// cgroup is a container's cgroup as its runtime recorded it: absolute paths by v1 controller ("" is
// v2), or one path that counts from the root of each hierarchy.
type cgroup struct {
	paths    map[string]string
	relative string
}

// Populated reports whether a process is in a cgroup or below it, a path from the root of each
// hierarchy. An error says that this program cannot find out.
func Populated(h host.Host, path string) (bool, error) {
	return cgroup{relative: path}.populated(h)
}

// HasBelow reports whether a cgroup has others below it: each is one link more to its directory
// than the two of an empty one (fs/kernfs/inode.c, set_inode_attr and kernfs_refresh_inode).
func HasBelow(h host.Host, path string) bool {
	var st unix.Stat_t
	return unix.Stat(relativeDir(h, path), &st) == nil && st.Nlink > 2
}

// populated reports whether a process is in the cgroup or below it. It returns an error if the
// container has no cgroup of its own, or if the caller does not see the node's cgroups.
func (c cgroup) populated(h host.Host) (bool, error) {
	dir := c.dir(h)
	if dir == "" {
		return false, errors.New("cannot tell a container's processes: it has no cgroup of its own")
	}
	events, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	if err == nil {
		return bytes.Contains(events, []byte("populated 1")), nil
	}
	if !isGone(err) {
		return false, err
	}
	found, err := anyProcs(dir)
	if !found && err == nil {
		err = wouldSee(h, dir)
	}
	return found, err
}

// dir chooses the hierarchy to look into: if there is one, that of the controller that guards the
// devices.
func (c cgroup) dir(h host.Host) string {
	if c.relative != "" {
		return relativeDir(h, c.relative)
	}
	for _, controller := range append([]string{"devices", ""}, slices.Sorted(maps.Keys(c.paths))...) {
		if path := c.paths[controller]; path != "" {
			return path
		}
	}
	return ""
}

func relativeDir(h host.Host, path string) string {
	path = filepath.Clean("/" + path)
	if path == "/" { // all processes have it
		return ""
	}
	return CgroupDir(h, path)
}

// anyProcs looks through a v1 cgroup and those below it. A zombie is in none.
func anyProcs(dir string) (found bool, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			var procs []byte
			procs, err = os.ReadFile(filepath.Join(path, "cgroup.procs"))
			found = found || len(procs) > 0
		}
		switch {
		case found:
			return fs.SkipAll
		case isGone(err): // removed meanwhile
			return nil
		}
		return err
	})
	return found, err
}

// isGone reports whether an error says that the file is no longer there. A cgroup that is removed
// while its file is open reads as ENODEV.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// wouldSee is nil if the caller would see the cgroup if it were there: the directory that should
// hold it lies in a cgroup file system, and the caller's cgroup namespace is the node's. A
// container with the host's pids has /sys/fs/cgroup too, with nothing in it but its own.
func wouldSee(h host.Host, dir string) error {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil && (st.Type == unix.CGROUP_SUPER_MAGIC || st.Type == unix.CGROUP2_SUPER_MAGIC) {
			return nodesCgroups(h)
		}
		if err == nil || !isGone(err) || dir == "/" {
			return fmt.Errorf("cannot tell a container's processes: %s is in no cgroup file system", dir)
		}
		dir = filepath.Dir(dir)
	}
}

// initialCgroupNS is the inode of the first cgroup namespace (PROC_CGROUP_INIT_INO of
// linux/proc_ns.h).
const initialCgroupNS = 0xEFFFFFFB

// nodesCgroups is nil if the caller is in the node's cgroup namespace: the kernel's first, or
// that of process 1 if the node is itself a container.
func nodesCgroups(h host.Host) error {
	own, err := namespace(h, "self")
	if err != nil || own == initialCgroupNS {
		return err
	}
	first, err := namespace(h, "1")
	if err == nil && own != first {
		err = errors.New("cannot tell a container's processes from another cgroup namespace than the node's")
	}
	return err
}

func namespace(h host.Host, process string) (uint64, error) {
	var st unix.Stat_t
	path := filepath.Join(h.Proc, process, "ns/cgroup")
	if err := unix.Stat(path, &st); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}
