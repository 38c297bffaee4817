package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// cgroup is a container's, as its runtime recorded it: absolute paths by v1 controller ("" is v2),
// or one path that counts from the root of each hierarchy.
type cgroup struct {
	paths    map[string]string
	relative string
}

// populated reports whether a process is in the cgroup or below it. An error says that it can't be
// told, and it can't where the container has no cgroup of its own or the caller doesn't see the
// node's cgroups.
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
		err = seen(h, dir)
	}
	return found, err
}

// dir chooses the hierarchy to look into: that of the controller that guards the devices, where
// there is one.
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
	if path == "/" { // everybody's
		return ""
	}
	root := filepath.Join(h.Sys, "fs/cgroup")
	for _, v1 := range []string{"devices", "unified"} {
		if _, err := os.Stat(filepath.Join(root, v1, "cgroup.procs")); err == nil {
			return filepath.Join(root, v1, path)
		}
	}
	return filepath.Join(root, path)
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
		case isGone(err): // removed as we look
			return nil
		}
		return err
	})
	return found, err
}

// named reports of each binding whether a process runs in a cgroup that is called as runtimes call
// a container's whose spec names none: "ID", and under systemd "runc-ID.scope" or "crun-ID.scope".
// /proc says it also to one who does not see the node's cgroups. What was started before the
// binding's creator is not the container's: its id may be the name of a cgroup of the node's, as
// init.scope. But gpuledgerd, which reserves, may have been started after the container.
func named(h host.Host, bindings []*grant.Binding) (used []bool, err error) {
	used = make([]bool, len(bindings))
	// Where /proc hides other users' processes (hidepid) from one without capabilities, it hides
	// this one too.
	if _, err := os.ReadFile(filepath.Join(h.Proc, "1/cgroup")); err != nil {
		return used, err
	}
	names, err := namesIn(h.Proc)
	for _, name := range names {
		pid, notPID := strconv.Atoi(name)
		if notPID != nil {
			continue
		}
		lines, err := h.Cgroups(pid, maxCgroups)
		if isGone(err) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return used, err
		}
		for i, b := range bindings {
			if used[i] || !inNamed(lines, b.Container) {
				continue
			}
			if used[i], err = startedSince(h, pid, b); err != nil {
				return used, err
			}
		}
	}
	return used, err
}

// maxCgroups bounds what is read of /proc/PID/cgroup, in bytes.
const maxCgroups = 1 << 20

// startedSince reports whether a process runs that can be of a binding's container by its start. A
// zombie is in no cgroup.
func startedSince(h host.Host, pid int, b *grant.Binding) (bool, error) {
	p, _, err := h.Process(pid)
	switch {
	case isGone(err), errors.Is(err, unix.ESRCH):
		return false, nil
	case err != nil:
		return false, err
	case p.Start < b.Creator.Start && !b.Reserved:
		return false, nil
	}
	return h.Runs(p)
}

// inNamed reports whether /proc/PID/cgroup has a cgroup of the container's name, or one below it.
func inNamed(lines []byte, id string) bool {
	for line := range bytes.Lines(lines) {
		for name := range bytes.SplitSeq(bytes.TrimSpace(line), []byte("/")) {
			unit, isScope := bytes.CutSuffix(name, []byte("-"+id+".scope"))
			if string(name) == id || isScope && !bytes.Contains(unit, []byte("-")) {
				return true
			}
		}
	}
	return false
}

// isGone: a cgroup that is removed while its file is open reads as ENODEV.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

func isNotDir(err error) bool { return errors.Is(err, unix.ENOTDIR) }

// seen is nil where the caller would see the cgroup if it were there: the directory that should
// hold it lies in a cgroup file system, and the caller's cgroup namespace is the node's. A
// container with the host's pids has /sys/fs/cgroup too, with nothing in it but its own.
func seen(h host.Host, dir string) error {
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

// nodesCgroups is nil where the caller is in the node's cgroup namespace: the kernel's first, or
// that of process 1 where the node is itself a container.
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
