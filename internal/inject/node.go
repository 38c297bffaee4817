package inject

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// strictly is how paths below /dev are resolved: without links, which the image could have made.
const strictly = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// openDev opens the container's /dev, which must be the runtime's fresh tmpfs. An image can make
// /dev a link: then the runtime's tmpfs is mounted somewhere else, and a write would go into the
// image or through it.
func (c *container) openDev(Change) (err error) {
	if c.dev, err = openat2(c.rootfs, "dev", unix.O_RDONLY|unix.O_DIRECTORY, strictly); err != nil {
		return fmt.Errorf("cannot open the container's /dev: %w", err)
	}
	var fs unix.Statfs_t
	var its, hosts unix.Stat_t
	switch err := errors.Join(unix.Fstatfs(c.dev, &fs), unix.Fstat(c.dev, &its),
		unix.Stat(c.Host.Dev, &hosts)); {
	case err != nil:
		return fmt.Errorf("cannot open the container's /dev: %w", err)
	case fs.Type != unix.TMPFS_MAGIC || !isMountRoot(c.dev) || its.Dev == hosts.Dev:
		return errors.New("the container's /dev is no tmpfs of its own")
	case fs.Flags&(unix.ST_NODEV|unix.ST_RDONLY) != 0:
		return errors.New("the container's /dev is mounted read-only or without devices")
	}
	return nil
}

func (c *container) removeNodes(change Change) error {
	for _, name := range change.Remove {
		if err := c.removeNode(name); err != nil {
			return fmt.Errorf("cannot remove %s from the container: %w", name, err)
		}
	}
	return nil
}

// removeNode removes a character device. It is no error if the runtime did not make it.
func (c *container) removeNode(name string) error {
	dir, base, err := c.parent(name, false)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	switch err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case err == unix.ENOENT:
		return nil
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT != unix.S_IFCHR:
		return errors.New("it is no character device")
	}
	return unix.Unlinkat(dir, base, 0) // EBUSY if the host's node is mounted there
}

func (c *container) makeNodes(change Change) error {
	for _, n := range change.Nodes {
		if err := c.makeNode(n); err != nil {
			return fmt.Errorf("cannot make %s in the container: %w", n.Path, err)
		}
	}
	return nil
}

func (c *container) makeNode(n *cdispec.DeviceNode) error {
	mode := os.FileMode(0o600)
	if n.FileMode != nil {
		mode = n.FileMode.Perm()
	}
	if n.Type != "c" {
		return fmt.Errorf("it is of the type %q", n.Type)
	}
	if err := c.removeNode(n.Path); err != nil {
		return err
	}
	dir, base, err := c.parent(n.Path, true)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Mknodat(dir, base, unix.S_IFCHR|uint32(mode),
		int(unix.Mkdev(uint32(n.Major), uint32(n.Minor)))); err != nil {
		return err // mknod neither replaces what is there nor follows it
	}
	if err := unix.Fchownat(dir, base, 0, 0, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	fd, err := openat2(dir, base, unix.O_PATH|unix.O_NOFOLLOW, strictly)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), uint32(mode)) // mknod applied this process's umask
}

// parent opens the directory of a path below /dev. It stays on /dev's own file system.
func (c *container) parent(name string, makeDirs bool) (dir int, base string, err error) {
	words, err := belowDev(name)
	if err != nil {
		return -1, "", err
	}
	if dir, err = openat2(c.dev, ".", unix.O_PATH|unix.O_DIRECTORY, strictly); err != nil {
		return -1, "", err
	}
	for _, word := range words[:len(words)-1] {
		if makeDirs {
			if err := unix.Mkdirat(dir, word, 0o755); err != nil && err != unix.EEXIST {
				_ = unix.Close(dir)
				return -1, "", err
			}
		}
		next, err := openat2(dir, word, unix.O_PATH|unix.O_DIRECTORY, strictly|unix.RESOLVE_NO_XDEV)
		_ = unix.Close(dir)
		if err != nil {
			return -1, "", err
		}
		dir = next
	}
	return dir, words[len(words)-1], nil
}

// A runtime's own /dev has some twenty entries, that of a container with all devices of a node some
// hundreds.
const (
	maxNodes = 65536
	maxDepth = 8
)

// listNodes lists the character devices of the container's /dev.
func (c *container) listNodes() ([]specs.LinuxDevice, error) {
	l := lister{}
	if err := l.list(c.dev, "/dev", 0); err != nil {
		return nil, fmt.Errorf("cannot list the container's /dev: %w", err)
	}
	return l.nodes, nil
}

type lister struct {
	nodes []specs.LinuxDevice
	seen  int
}

func (l *lister) list(dir int, name string, depth int) error {
	fd, err := openat2(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY, strictly)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	names, err := f.Readdirnames(maxNodes)
	if l.seen += len(names); err != nil && len(names) > 0 || l.seen >= maxNodes || depth > maxDepth {
		return errors.Join(err, errors.New("there is too much in it"))
	}
	for _, base := range names {
		if err := l.entry(fd, base, path.Join(name, base), depth); err != nil {
			return err
		}
	}
	return nil
}

func (l *lister) entry(dir int, base, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		l.nodes = append(l.nodes, specs.LinuxDevice{Path: name, Type: "c", Major: int64(unix.Major(st.Rdev)),
			Minor: int64(unix.Minor(st.Rdev))})
	case unix.S_IFDIR:
		sub, err := openat2(dir, base, unix.O_RDONLY|unix.O_DIRECTORY, strictly|unix.RESOLVE_NO_XDEV)
		if err == unix.EXDEV { // /dev/pts, /dev/shm, and what the spec mounts there
			return nil
		}
		if err != nil {
			return err
		}
		defer unix.Close(sub)
		return l.list(sub, name, depth+1)
	}
	return nil
}
