package inject

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// The main thread is kept for the main goroutine, so that it never enters a container: it cannot
// end before the process does, and /proc/self shows its view.
func init() { runtime.LockOSThread() }

// mount binds the host's files into the container. The clone of a mount is made here, where its
// source is visible. A thread in the container's mount namespace moves it to its place, because it
// can be attached only there. The thread runs only this code and ends with it.
func (c *container) mount(change Change) error {
	ns, err := unix.Openat(c.proc, "ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot enter the container's mount namespace: %w", err)
	}
	defer unix.Close(ns)
	var trees []int
	defer func() {
		for _, tree := range trees {
			_ = unix.Close(tree)
		}
	}()
	for _, m := range change.Mounts {
		tree, err := cloneMount(m)
		if err != nil {
			return fmt.Errorf("cannot mount %s into the container: %w", m.HostPath, err)
		}
		trees = append(trees, tree)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: no other goroutine may run on this thread
		done <- c.attach(ns, change.Mounts, trees)
	}()
	return <-done
}

// attach is the thread's work. setns(2) needs a thread with its own file system attributes.
func (c *container) attach(ns int, mounts []*cdispec.Mount, trees []int) error {
	err := unix.Unshare(unix.CLONE_FS)
	if err == nil {
		err = unix.Setns(ns, unix.CLONE_NEWNS)
	}
	if err != nil {
		return fmt.Errorf("cannot enter the container's mount namespace: %w", err)
	}
	for i, m := range mounts {
		if err := c.place(m.ContainerPath, trees[i]); err != nil {
			return fmt.Errorf("cannot mount at %s in the container: %w", m.ContainerPath, err)
		}
	}
	return nil
}

// mountFlags are the options of a bind mount. Any other option is an error, because leaving it out
// would change the mount.
var mountFlags = map[string]uint64{
	"bind": 0, "rbind": 0, "rw": 0, "private": 0, "rprivate": 0,
	"ro": unix.MOUNT_ATTR_RDONLY, "nosuid": unix.MOUNT_ATTR_NOSUID, "nodev": unix.MOUNT_ATTR_NODEV,
	"noexec": unix.MOUNT_ATTR_NOEXEC,
}

// cloneMount makes an unattached bind mount of a host's path with the flags of its options. Mounts
// below it are left out: they would keep their own flags.
func cloneMount(m *cdispec.Mount) (int, error) {
	attr := unix.MountAttr{Attr_set: 0, Propagation: unix.MS_PRIVATE}
	for _, option := range m.Options {
		flag, known := mountFlags[option]
		if !known {
			return -1, fmt.Errorf("the option %q cannot be given to a live container's mount", option)
		}
		attr.Attr_set |= flag
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, m.HostPath, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, err
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		_ = unix.Close(tree)
		return -1, err
	}
	return tree, nil
}

// inRoot resolves an image's links as the container does, and never leaves its root file system.
const inRoot = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS

// place attaches a mount at a path of the container. It makes a missing path, as runtimes do.
func (c *container) place(name string, tree int) error {
	var source unix.Stat_t
	if err := unix.Fstat(tree, &source); err != nil {
		return err
	}
	target, err := c.target(name, source.Mode&unix.S_IFMT == unix.S_IFDIR)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	if err := c.isPrivate(target); err != nil {
		return err
	}
	if err := unix.MoveMount(tree, "", target, "",
		unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return err
	}
	again, err := openat2(c.rootfs, clean(name), unix.O_PATH, inRoot)
	if err != nil {
		return err
	}
	defer unix.Close(again)
	var there unix.Stat_t
	if err := unix.Fstat(again, &there); err != nil || there.Dev != source.Dev || there.Ino != source.Ino {
		return errors.Join(err, errors.New("something else is there after the mount"))
	}
	return nil
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// target opens the place of a mount, and makes an empty file or directory if nothing is there.
func (c *container) target(name string, isDir bool) (int, error) {
	dir, err := c.makeDirs(path.Dir(clean(name)))
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	base := path.Base(clean(name))
	if isDir {
		err = unix.Mkdirat(dir, base, 0o755)
	} else {
		err = makeFile(dir, base)
	}
	if err != nil && err != unix.EEXIST {
		return -1, err
	}
	target, err := openat2(dir, base, unix.O_PATH|unix.O_NOFOLLOW,
		unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(target, &st); err != nil || (st.Mode&unix.S_IFMT == unix.S_IFDIR) != isDir ||
		st.Mode&unix.S_IFMT == unix.S_IFLNK {
		_ = unix.Close(target)
		return -1, errors.Join(err, errors.New("what is there is of another kind"))
	}
	return target, nil
}

func makeFile(dir int, base string) error {
	fd, err := unix.Openat(dir, base, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_WRONLY|unix.O_CLOEXEC,
		0o644)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

// makeDirs opens a directory of the container, and makes missing ones on the way. Each step begins
// at the root again, so that links are resolved as in the container.
func (c *container) makeDirs(name string) (int, error) {
	words := slices.DeleteFunc(strings.Split(clean(name), "/"), func(w string) bool { return w == "" })
	at := "."
	dir, err := openat2(c.rootfs, at, unix.O_PATH|unix.O_DIRECTORY, inRoot)
	for _, word := range words {
		if err != nil {
			return -1, err
		}
		if err := unix.Mkdirat(dir, word, 0o755); err != nil && err != unix.EEXIST && err != unix.EROFS {
			_ = unix.Close(dir)
			return -1, err
		}
		_ = unix.Close(dir)
		at = path.Join(at, word)
		dir, err = openat2(c.rootfs, at, unix.O_PATH|unix.O_DIRECTORY, inRoot)
	}
	return dir, err
}

// isPrivate refuses a place from which a mount would spread to the host, and one in a file system
// of the kernel.
func (c *container) isPrivate(target int) error {
	var st unix.Statx_t
	if err := unix.Statx(target, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil ||
		st.Mask&unix.STATX_MNT_ID == 0 {
		return errors.Join(err, errors.New("the kernel does not report which mount it is in"))
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(target, &fs); err != nil {
		return err
	}
	if slices.Contains([]int64{unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC,
		unix.CGROUP2_SUPER_MAGIC}, int64(fs.Type)) {
		return errors.New("it is in a file system of the kernel")
	}
	info, err := c.readProc("mountinfo")
	if err != nil {
		return err
	}
	id := strconv.FormatUint(st.Mnt_id, 10) + " "
	for line := range strings.Lines(info) {
		if strings.HasPrefix(line, id) {
			if optional, _, _ := strings.Cut(line, " - "); strings.Contains(optional, " shared:") {
				return errors.New("mounts there would spread to the host")
			}
			return nil
		}
	}
	return errors.New("it is in no mount of the container")
}
