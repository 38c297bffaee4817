package limits

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

func headOf(r *limitRecord) head {
	return head{Magic: regionMagic, Version: version, Devices: r.Devices, ID: r.ID,
		Slots: slots, SlotSize: slotSize}
}

// ensureRegion makes the region, or repairs the size and the head that a container changed. It
// keeps the same file, because processes may have it mapped; isNew says that none can. It allocates
// every page: on a full file system a write to a missing page would be a SIGBUS in a program.
func ensureRegion(dir string, want head, isNew bool) error {
	path := filepath.Join(dir, grant.RegionFile)
	// Any user of the container writes into the region. The directory's mode keeps other users of
	// the node out.
	var f *os.File
	if err := host.Take(host.Step{Kind: host.Creates, Path: path}, func() (err error) {
		f, err = host.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o666)
		return err
	}); err != nil {
		return leased(err, path)
	}
	defer f.Close()
	before, err := f.Stat()
	if err == nil && !before.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	if err == nil && before.Mode().Perm() != 0o666 {
		err = f.Chmod(0o666)
	}
	if err == nil && before.Size() != regionSize {
		err = f.Truncate(regionSize)
	}
	if err == nil {
		err = allocate(f)
	}
	if err == nil {
		err = setHead(f, want, isNew)
	}
	if err != nil {
		return fmt.Errorf("cannot make the region %s: %w", path, err)
	}
	return nil
}

// allocate reserves the file's pages. Where the file system cannot reserve them, allocate writes
// them.
func allocate(f *os.File) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, regionSize)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	content := make([]byte, regionSize)
	if _, err := f.ReadAt(content, 0); err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	return err
}

// setHead writes the head if it is wrong. The number of slots in use is unknown then, so all of
// them count, unless isNew.
//
// The shims of a new region all count the changes of their slots, and the head says so. A region
// that an older gpuledger made may have processes of an older shim, which do not. So it stays as it
// is, and a head that was damaged does not say so either: then each sum reads all slots.
func setHead(f *os.File, want head, isNew bool) error {
	var have head
	if _, err := f.ReadAt(bytesOf(&have), 0); err != nil {
		return err
	}
	for _, want.Slots = range [...]uint32{slots | counted, slots} {
		if want.High = have.High; have == want && !isNew {
			return nil
		}
	}
	if want.High = slots; isNew {
		want.High, want.Slots = 0, slots|counted
	}
	_, err := f.WriteAt(padded(&want), 0)
	return err
}

// Trim cuts every region below root that has grown back to its size, and removes the attributes
// that were set on a region. grown has the names of their directories. A container can do both to
// its own region, which takes room from the others. left names those that Trim could not repair: a
// container holds a lease, or set more attributes than the kernel lists.
func Trim(root string) (grown, left []string) {
	for _, name := range Kept(root) {
		path := filepath.Join(root, name, grant.RegionFile)
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		changed, err := strip(path)
		if tooLarge(info) {
			changed, err = true, errors.Join(err, cut(path))
		}
		switch {
		case err != nil:
			left = append(left, name)
		case changed:
			grown = append(grown, name)
		}
	}
	return grown, left
}

// tooLarge reports whether a region takes more than its share: its size, or pages beyond its end,
// which fallocate(2) also allocates. A file system may count some blocks of its own.
func tooLarge(f os.FileInfo) bool {
	st, ok := f.Sys().(*syscall.Stat_t)
	return f.Size() > regionSize || ok && st.Blocks*512 > regionSize+64<<10
}

// cut truncates the file to the size of a region. It never waits for a lease, as truncate(2) would.
func cut(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return leased(err, path)
	}
	defer f.Close()
	return f.Truncate(regionSize)
}

// strip removes the attributes user.* of a file. A tmpfs has them since Linux 6.6 and counts them
// as inodes. Any process that may write to the file may set them.
func strip(path string) (changed bool, err error) {
	size, err := unix.Llistxattr(path, nil)
	if size == 0 || errors.Is(err, unix.ENOTSUP) {
		return false, nil
	}
	names := make([]byte, 2*max(size, 512)) // a container may set more between the two calls
	if err == nil {
		size, err = unix.Llistxattr(path, names)
	}
	if err != nil {
		return false, fmt.Errorf("cannot list the attributes of %s: %w", path, err)
	}
	for name := range strings.SplitSeq(string(names[:size]), "\x00") {
		if !strings.HasPrefix(name, "user.") {
			continue
		}
		if e := unix.Lremovexattr(path, name); e == nil {
			changed = true
		} else if !errors.Is(e, unix.ENODATA) {
			err = fmt.Errorf("cannot remove attribute %s of %s: %w", name, path, e)
		}
	}
	return changed, err
}

// Kept lists the grants that have files below root, by the names of their directories.
func Kept(root string) (names []string) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// Remove removes the files of a grant. Containers that have them mounted keep them. The limits go
// first: a reader that finds the limits also finds the region. The error may be due to what a
// container did to its region.
func Remove(dir string) error {
	for _, path := range []string{filepath.Join(dir, grant.LimitsFile),
		filepath.Join(dir, grant.RegionFile)} {
		err := host.Remove(path)
		if errors.Is(err, unix.EPERM) && clearFlags(path) == nil {
			err = host.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return fmt.Errorf("cannot remove the limits of a grant: %w", err)
		}
	}
	return host.Take(host.Step{Kind: host.Removes, Path: dir}, func() error {
		return os.RemoveAll(dir) // an interrupted write may have left drafts
	})
}

// The flags of FS_IOC_GETFLAGS (linux/fs.h) that keep a file from being removed.
const immutable, appendOnly = 0x10, 0x20

// clearFlags takes the flags immutable and append-only from a region. A tmpfs has them since Linux
// 6.0, and a container with CAP_LINUX_IMMUTABLE can set them. The caller needs that capability too:
// gpuledgerd.service does not have it, and root's commands do. Only the node puts files into the
// directory, and the open follows no link and waits for nothing.
func clearFlags(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.Join(err, errors.ErrUnsupported)
	}
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags&^(immutable|appendOnly)))
}

// mountOptions are the mount options of the file system for all records. It has space for some 600
// grants and for what containers can add to their regions.
const mountOptions = "size=128m,nr_inodes=8192,mode=0700"

const mountFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// Mount mounts a small file system at root if none is mounted there. A container can make its
// region as large as it likes, and on /run it would fill the space that the whole node needs. The
// mount is made once per boot.
func Mount(root string) error {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fmt.Errorf("cannot make the file system for the limits of grants: %w", err)
	}
	is, err := isMount(root)
	if err != nil {
		return fmt.Errorf("cannot make the file system for the limits of grants: %w", err)
	}
	if is {
		return nil
	}
	if err := host.Take(host.Step{Kind: host.Mounts, Path: root}, func() error {
		return unix.Mount("tmpfs", root, "tmpfs", mountFlags, mountOptions)
	}); err != nil {
		return fmt.Errorf("cannot mount a small file system at %s for what containers write: %w", root, err)
	}
	return nil
}

// isMount reports whether a directory is on another file system than its parent.
func isMount(dir string) (bool, error) {
	var st, above unix.Stat_t
	err := errors.Join(unix.Stat(dir, &st), unix.Stat(filepath.Dir(dir), &above))
	return st.Dev != above.Dev, err
}

// bytesPerInode is the proportion of size to inodes of the file system that Mount makes.
const bytesPerInode = 16 << 10

// Enlarge makes the file system at root larger for all its users and in every mount namespace. A
// file without a name may fill it, and such a file cannot be cut. The error is fs.ErrPermission if
// the caller may not mount.
func Enlarge(root string, by grant.Bytes) error {
	var st unix.Statfs_t
	err := unix.Statfs(root, &st)
	if err == nil && st.Type != unix.TMPFS_MAGIC {
		err = errors.New("it is no tmpfs")
	}
	var options []string
	if st.Blocks > 0 { // a file system without a bound needs none
		options = append(options, fmt.Sprintf("size=%d", st.Blocks*uint64(st.Bsize)+uint64(by)))
	}
	if st.Files > 0 {
		options = append(options, fmt.Sprintf("nr_inodes=%d", st.Files+uint64(by)/bytesPerInode))
	}
	if err == nil {
		err = host.Take(host.Step{Kind: host.Mounts, Path: root}, func() error {
			return unix.Mount("", root, "", unix.MS_REMOUNT|mountFlags, strings.Join(options, ","))
		})
	}
	if err != nil {
		return fmt.Errorf("cannot make %s larger, as `mount -o remount,%s %s` does: %w", root,
			strings.Join(options, ","), root, err)
	}
	return nil
}

// Unlinked returns how many MiB and inodes of the file system at root belong to files without a
// name there. Such files are those of ended grants that a process or a container's mount still has
// open. It returns 0 for both below muchUnlinked: files of the usual size do no harm, but a
// container that has one open can make it larger.
func Unlinked(root string) (mib, inodes int64) {
	var st unix.Statfs_t
	if is, err := isMount(root); !is || err != nil || unix.Statfs(root, &st) != nil ||
		st.Type != unix.TMPFS_MAGIC {
		return 0, 0 // Mount failed here: the files are on the node's own file system
	}
	// Statfs is called before the files are read: what grows in between has a name.
	held := int64(st.Blocks-st.Bfree) * st.Bsize
	inodes = int64(st.Files - st.Ffree)
	much := func() bool { return held >= muchUnlinked || inodes >= muchUnlinked/bytesPerInode }
	if !much() {
		return 0, 0
	}
	for _, name := range Kept(root) {
		inodes-- // the inode of its directory
		for _, file := range []string{grant.LimitsFile, grant.RegionFile} {
			var st unix.Stat_t
			if unix.Lstat(filepath.Join(root, name, file), &st) == nil {
				held, inodes = held-512*st.Blocks, inodes-1
			}
		}
	}
	if !much() {
		return 0, 0
	}
	return max(held, 0) >> 20, max(inodes, 0)
}

// muchUnlinked is a quarter of the file system: the regions of 160 containers whose grants were
// released by force.
const muchUnlinked = 32 << 20
