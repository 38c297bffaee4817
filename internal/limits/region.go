package limits

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

func headOf(r *record) head {
	return head{Magic: regionMagic, Version: version, Devices: r.Devices, ID: r.ID, Slots: slots, SlotSize: slotSize}
}

// ensureRegion makes the region, or puts right what a container has done to it: its size, its head. It is the same file
// afterwards, because processes may have it mapped; isNew says that none can. Every page is there from then on: a full file system must not become a
// SIGBUS in a program.
func ensureRegion(dir string, want head, isNew bool) error {
	path := filepath.Join(dir, grant.RegionFile)
	// Any user of the container writes into the region. The directory keeps the node's other users out.
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

// setHead writes the head where it is not as it must be. How many slots were used before nobody knows any more then: all of them
// count.
func setHead(f *os.File, want head, isNew bool) error {
	content := make([]byte, page)
	var have head
	if _, err := f.ReadAt(content, 0); err != nil {
		return err
	}
	if err := decode(content, &have); err != nil {
		return err
	}
	if want.High = have.High; have == want {
		return nil
	}
	if want.High = slots; isNew {
		want.High = 0
	}
	_, err := f.WriteAt(padded(want, page), 0)
	return err
}

// Trim cuts every region below root that has grown back to its size, and gives their directories' names: a container can make its
// own larger, which takes room from the others. Those in left it could not cut: the container holds a lease.
func Trim(root string) (grown, left []string) {
	for _, name := range Kept(root) {
		path := filepath.Join(root, name, grant.RegionFile)
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || info.Size() <= regionSize {
			continue
		}
		if cut(path) == nil {
			grown = append(grown, name)
		} else {
			left = append(left, name)
		}
	}
	return grown, left
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

// Remove removes the files of a grant. Containers that have them mounted keep them. The limits go first: who finds them finds a region.
func Remove(dir string) error {
	for _, path := range []string{filepath.Join(dir, grant.LimitsFile), filepath.Join(dir, grant.RegionFile)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return fmt.Errorf("cannot remove the limits of a grant: %w", err)
		}
	}
	return os.RemoveAll(dir) // what a write left that was interrupted
}

// The file system of all records: room for some 600 grants, and what containers could fill with their regions.
const roomOptions = "size=128m,nr_inodes=8192,mode=0700"

// Room makes root a small file system of its own, where it is none yet. A container can make its region as large as it likes: on
// /run it would fill what the whole node needs. The mount is made once a boot.
func Room(root string) error {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return fmt.Errorf("cannot make room for the limits of grants: %w", err)
	}
	var st, above unix.Stat_t
	if err := errors.Join(unix.Stat(root, &st), unix.Stat(filepath.Dir(root), &above)); err != nil {
		return fmt.Errorf("cannot make room for the limits of grants: %w", err)
	}
	if st.Dev != above.Dev {
		return nil
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, roomOptions); err != nil {
		return fmt.Errorf("cannot mount a small file system at %s for what containers write: %w", root, err)
	}
	return nil
}
