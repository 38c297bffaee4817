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

func headOf(r *record) head {
	return head{Magic: regionMagic, Version: version, Devices: r.Devices, ID: r.ID,
		Slots: slots, SlotSize: slotSize}
}

// ensureRegion makes the region, or puts right what a container has done to it: its size, its head.
// It is the same file afterwards, because processes may have it mapped; isNew says that none can.
// Every page is there from then on: a full file system must not become a SIGBUS in a program.
func ensureRegion(dir string, want head, isNew bool) error {
	path := filepath.Join(dir, grant.RegionFile)
	// Any user of the container writes into the region. The directory keeps the node's other users
	// out.
	f, err := host.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o666)
	if err != nil {
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

// allocate gives the file its pages. A file system that cannot promise them has them written.
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

// setHead writes the head where it is not as it must be. How many slots were used before nobody
// knows any more then: all of them count.
func setHead(f *os.File, want head, isNew bool) error {
	var have head
	if _, err := f.ReadAt(bytesOf(&have), 0); err != nil {
		return err
	}
	if want.High = have.High; have == want {
		return nil
	}
	if want.High = slots; isNew {
		want.High = 0
	}
	_, err := f.WriteAt(padded(&want), 0)
	return err
}

// Trim cuts every region below root that has grown back to its size, takes off the attributes that
// were set on one, and gives their directories' names: a container can do both to its own, which
// takes room from the others. Those in left it could not put right: the container holds a lease, or
// has set more attributes than the kernel lists.
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

// tooLarge reports whether a region takes more than it is to have: of its size, or of pages behind
// its end, which fallocate(2) gives too. A file system may count some blocks of its own.
func tooLarge(f os.FileInfo) bool {
	st, ok := f.Sys().(*syscall.Stat_t)
	return f.Size() > regionSize || ok && st.Blocks*512 > regionSize+64<<10
}

// cut never waits for a lease, as truncate(2) would.
func cut(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return leased(err, path)
	}
	defer f.Close()
	return f.Truncate(regionSize)
}

// strip takes off the attributes user.* of a file. A tmpfs has them from Linux 6.6 on, counts them
// as inodes, and lets whoever may write to the file set them.
func strip(path string) (changed bool, err error) {
	size, err := unix.Llistxattr(path, nil)
	if size == 0 || errors.Is(err, unix.ENOTSUP) {
		return false, nil
	}
	names := make([]byte, 2*max(size, 512)) // a container may set more in between
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

// Kept lists the grants that have files below root: the names of their directories.
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
// first: who finds them finds a region.
func Remove(dir string) error {
	for _, path := range []string{filepath.Join(dir, grant.LimitsFile),
		filepath.Join(dir, grant.RegionFile)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) &&
			!errors.Is(err, unix.ENOTDIR) {
			return fmt.Errorf("cannot remove the limits of a grant: %w", err)
		}
	}
	return os.RemoveAll(dir) // what a write left that was interrupted
}

// The file system of all records: room for some 600 grants, and what containers could fill with
// their regions.
const roomOptions = "size=128m,nr_inodes=8192,mode=0700"

const roomFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// Room makes root a small file system of its own, where it is none yet. A container can make its
// region as large as it likes: on /run it would fill what the whole node needs. The mount is made
// once a boot.
func Room(root string) error {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fmt.Errorf("cannot make room for the limits of grants: %w", err)
	}
	is, err := isMount(root)
	if err != nil {
		return fmt.Errorf("cannot make room for the limits of grants: %w", err)
	}
	if is {
		return nil
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", roomFlags, roomOptions); err != nil {
		return fmt.Errorf("cannot mount a small file system at %s for what containers write: %w", root, err)
	}
	return nil
}

// isMount reports whether a directory is a file system of its own.
func isMount(dir string) (bool, error) {
	var st, above unix.Stat_t
	err := errors.Join(unix.Stat(dir, &st), unix.Stat(filepath.Dir(dir), &above))
	return st.Dev != above.Dev, err
}

// bytesPerInode is the room's proportion: an inode is for so much of its size.
const bytesPerInode = 16 << 10

// Enlarge makes the room larger, under all who use it and in every mount namespace: what fills it
// may have no name by which it could be cut. An error that is fs.ErrPermission is of who may not
// mount.
func Enlarge(root string, by grant.Bytes) error {
	var st unix.Statfs_t
	err := unix.Statfs(root, &st)
	if err == nil && st.Type != unix.TMPFS_MAGIC {
		err = errors.New("it is no tmpfs")
	}
	var options []string
	if st.Blocks > 0 { // else it has no bound, and takes none
		options = append(options, fmt.Sprintf("size=%d", st.Blocks*uint64(st.Bsize)+uint64(by)))
	}
	if st.Files > 0 {
		options = append(options, fmt.Sprintf("nr_inodes=%d", st.Files+uint64(by)/bytesPerInode))
	}
	if err == nil {
		err = unix.Mount("", root, "", unix.MS_REMOUNT|roomFlags, strings.Join(options, ","))
	}
	if err != nil {
		return fmt.Errorf("cannot make %s larger, as `mount -o remount,%s %s` does: %w", root,
			strings.Join(options, ","), root, err)
	}
	return nil
}

// Nameless tells how many MiB and inodes of the room are held by what has no name there: the files
// of grants that are over, as long as a process or a container's mount has them. There are none as
// long as it is not much: a file of the usual size is no matter, but whoever has one can make it
// larger.
func Nameless(root string) (mib, inodes int64) {
	var st unix.Statfs_t
	if is, err := isMount(root); !is || err != nil || unix.Statfs(root, &st) != nil ||
		st.Type != unix.TMPFS_MAGIC {
		return 0, 0 // the room could not be made: what is there is the node's
	}
	// before the files are looked at: what grows meanwhile has a name
	held := int64(st.Blocks-st.Bfree) * st.Bsize
	inodes = int64(st.Files - st.Ffree)
	much := func() bool { return held >= muchNameless || inodes >= muchNameless/bytesPerInode }
	if !much() {
		return 0, 0
	}
	for _, name := range Kept(root) {
		inodes-- // its directory's
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

// muchNameless is a quarter of the room: the regions of 160 containers whose grants were taken from
// them by force.
const muchNameless = 32 << 20
