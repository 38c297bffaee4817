package host

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// initialUserNamespace is the inode of the user namespace that a machine boots with
// (USER_NS_INIT_INO, include/uapi/linux/nsfs.h; the same number since Linux 3.8). A map of ids is
// not enough: a nested namespace can have the identity map.
const initialUserNamespace = 0xeffffffd

// InitialUserNamespace reports whether the caller is in the machine's first user namespace. In any
// other, the kernel lets no runtime set device rules. It is true on a kernel without user
// namespaces, and false if the namespace cannot be read.
func (h Host) InitialUserNamespace() bool {
	ns, err := h.namespace("user")
	return err == nil && ns == initialUserNamespace || errors.Is(err, fs.ErrNotExist)
}

// IsRoot reports whether the caller is root of the machine, not of a user namespace.
func (h Host) IsRoot() bool { return h.UID == 0 && h.InitialUserNamespace() }

// HasRoot reports whether the user namespace at a path maps the caller's root. The kernel shows a
// namespace's map only through a process in it. known is false if there is none, as in one that an
// engine has just pinned, or if none is among the last maxSearched processes.
func (h Host) HasRoot(path string) (has, known bool) {
	var ns unix.Stat_t
	if unix.Stat(path, &ns) != nil {
		return false, false
	}
	// /proc/PID/ns/user, as engines write it
	if dir := filepath.Dir(filepath.Dir(path)); filepath.Dir(dir) == h.Proc {
		if has, known = h.hasRoot(dir, ns); known {
			return has, known
		}
	}
	for _, pid := range lastProcesses(h.Proc) {
		if has, known = h.hasRoot(filepath.Join(h.Proc, strconv.Itoa(pid)), ns); known {
			return has, known
		}
	}
	return false, false
}

// maxSearched is in how many processes HasRoot looks for a namespace. A node can have tens of
// thousands, and each create of a pod's container that joins a pinned namespace would wait for
// them.
const maxSearched = 300

// lastProcesses returns the processes with the highest pids, the highest first: a pod's sandbox was
// usually started shortly before the containers that join its namespace.
func lastProcesses(proc string) (pids []int) {
	names, _ := Names(proc) // unreadable: no process is known
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	slices.Reverse(pids)
	return pids[:min(len(pids), maxSearched)]
}

// hasRoot reads the map through one process, if that is in the namespace. Before the map is written
// it is unknown.
func (h Host) hasRoot(dir string, ns unix.Stat_t) (has, known bool) {
	is := func() bool {
		var its unix.Stat_t
		return unix.Stat(filepath.Join(dir, "ns/user"), &its) == nil && its.Ino == ns.Ino && its.Dev == ns.Dev
	}
	if !is() {
		return false, false
	}
	text, err := ReadFile(filepath.Join(dir, "uid_map"), maxProc)
	if err != nil || !is() || len(strings.TrimSpace(string(text))) == 0 {
		return false, false
	}
	for line := range strings.Lines(string(text)) { // first id inside, first id outside, number of ids
		if fields := strings.Fields(line); len(fields) == 3 && fields[1] == "0" && fields[2] != "0" {
			return true, true
		}
	}
	return false, true
}
