package inject

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// Target is the container to be changed.
type Target struct {
	Host   host.Host
	PID    int    // of its init, which waits
	Parent int    // the process that must be the init's parent: the runtime that makes the container
	Rootfs string // where its root file system lies in its own mount namespace, before pivot_root

	Systemd bool   // its runtime was told to have systemd make its cgroup
	Socket  string // of systemd; "" is the usual one
}

// container is an opened Target. Everything is reached through proc, the init's directory in /proc.
// It is not the directory of a later process with the same pid.
type container struct {
	Target
	proc, rootfs, dev int // file descriptors; -1: not opened
	rules             rules
	cgroup            *os.File // the directory of the rules; nil: not opened
	lines             string   // the init's cgroups in /proc when it was opened
	unit              *unit    // of systemd; nil: none
}

// open opens the init's directory in /proc, so that a reused pid cannot replace it. It checks that
// the init is the runtime's child, has a mount namespace of its own, and is in the host's user
// namespace.
func open(t Target) (*container, error) {
	c := &container{Target: t, proc: -1, rootfs: -1, dev: -1}
	if err := c.openProc(); err != nil {
		c.close()
		return nil, fmt.Errorf("cannot reach the container's init %d: %w", t.PID, err)
	}
	return c, nil
}

func (c *container) openProc() (err error) {
	if c.proc, err = unix.Open(c.Host.Proc+"/"+strconv.Itoa(c.PID),
		unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	if err := c.isChild(); err != nil {
		return err
	}
	if same, err := c.sharesNamespace("user"); err != nil || !same {
		return errors.Join(err, errors.New("it has a user namespace of its own"))
	}
	if same, err := c.sharesNamespace("mnt"); err != nil || same {
		return errors.Join(err, errors.New("it has no mount namespace of its own"))
	}
	return c.openRootfs()
}

// isChild is nil if the init lives and is the runtime's child.
func (c *container) isChild() error {
	stat, err := c.readProc("stat")
	if err != nil {
		return err
	}
	// "4334 (name) S PARENT ...", where the name may hold parentheses
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	switch {
	case len(fields) < 2 || fields[1] != strconv.Itoa(c.Parent):
		return fmt.Errorf("it is no child of process %d", c.Parent)
	case fields[0] == "Z": // its cgroup can be another container's, and /proc still names it
		return errors.New("it has ended")
	}
	return nil
}

// openRootfs opens the root file system from the init's root, so that the path is resolved in its
// mount namespace.
func (c *container) openRootfs() (err error) {
	root, err := unix.Openat(c.proc, "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	c.rootfs, err = openat2(root, strings.TrimLeft(c.Rootfs, "/"), unix.O_PATH|unix.O_DIRECTORY,
		unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
	if err == nil && !isMountRoot(c.rootfs) {
		err = fmt.Errorf("its root file system is not mounted at %s", c.Rootfs)
	}
	return err
}

func (c *container) close() {
	for _, fd := range []int{c.proc, c.rootfs, c.dev} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	if c.cgroup != nil {
		_ = c.cgroup.Close()
	}
	if c.unit != nil {
		c.unit.close()
	}
}

// sharesNamespace reports whether the init is in this process's namespace of a kind.
func (c *container) sharesNamespace(kind string) (bool, error) {
	var its, ours unix.Stat_t
	if err := unix.Fstatat(c.proc, "ns/"+kind, &its, 0); err != nil {
		return false, err
	}
	if err := unix.Stat(c.Host.Proc+"/self/ns/"+kind, &ours); err != nil {
		return false, err
	}
	return its.Ino == ours.Ino && its.Dev == ours.Dev, nil
}

// maxProc bounds how much of a file of the init is read, in bytes.
const maxProc = 4 << 20

// readProc reads a file of the init's directory in /proc; ESRCH if it is gone.
func (c *container) readProc(name string) (string, error) { return readAt(c.proc, name) }

// readAt reads a file of an open directory.
func readAt(dir int, name string) (string, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	text, err := host.ReadFile("/proc/self/fd/"+strconv.Itoa(fd), maxProc)
	return string(text), err
}

func openat2(dir int, name string, flags, resolve uint64) (int, error) {
	for {
		fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolve})
		// EAGAIN: something was renamed meanwhile, so the kernel cannot guarantee the walk
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// isMountRoot reports whether an open directory is the top of a mount.
func isMountRoot(fd int) bool {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st)
	return err == nil && st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 &&
		st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}
