package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/host"
)

// readFile reads a regular file of up to limit bytes. It never waits, whatever stands in the file's
// place: a reader of the ledger is a container's create.
func readFile(path string, limit int64) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, errors.New("it is not a regular file")
	case st.Size > limit:
		return nil, fmt.Errorf("it has %d bytes, more than %d", st.Size, limit)
	}
	data := make([]byte, st.Size)
	n, err := readFull(fd, data)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return data[:n], nil
}

func readFull(fd int, data []byte) (n int, err error) {
	for n < len(data) {
		m, err := unix.Read(fd, data[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || m == 0 {
			return n, err
		}
		n += m
	}
	return n, nil
}

// temporary is where the next content of a file is written. One name a file is enough, as only the
// holder of the lock writes, and a crash leaves one file behind, not many.
func temporary(path string) string {
	dir, name := filepath.Split(path)
	return dir + "." + name + ".tmp"
}

// replaceDurably puts data at path so that it survives a power cut. On an error the old content
// stands: where the directory's sync fails after the rename, the rename is undone, because a caller
// who is told that it failed will not expect the new content to come back.
func replaceDurably(path string, data []byte) (err error) {
	tmp, old := temporary(path), temporary(path)+".old"
	defer func() {
		if err != nil {
			_ = os.Remove(tmp)
			_ = os.Remove(old)
		}
	}()
	if err := writeDurably(tmp, data); err != nil {
		return err
	}
	failpoint.Hit("ledger/put-written")
	kept, err := keepOld(path, old)
	if err != nil {
		return err
	}
	failpoint.Hit("ledger/put-kept-old")
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	failpoint.Hit("ledger/put-renamed")
	if err := syncDir(filepath.Dir(path)); err != nil {
		return errors.Join(err, undoReplace(path, old, kept))
	}
	failpoint.Hit("ledger/put-synced")
	if kept {
		_ = os.Remove(old)
	}
	failpoint.Hit("ledger/put-forgot-old")
	return nil
}

// syncDir is host.SyncDir; a test makes it fail.
var syncDir = host.SyncDir

// writeDurably makes the file new: what is left from a crash may be a link to something that is
// read.
func writeDurably(path string, data []byte) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// keepOld gives the file at path a second name, by which a replacement can be undone.
func keepOld(path, old string) (bool, error) {
	if err := os.Remove(old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	err := os.Link(path, old)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func undoReplace(path, old string, kept bool) error {
	if kept {
		return os.Rename(old, path)
	}
	return os.Remove(path)
}

// removeDurably takes a file away for good. On an error it stands as before.
func removeDurably(path string) error {
	tmp := temporary(path)
	_ = os.Remove(tmp) // a crash's leftover; where it can't go the rename says so
	if err := os.Rename(path, tmp); err != nil {
		return err
	}
	failpoint.Hit("ledger/delete-renamed")
	if err := syncDir(filepath.Dir(path)); err != nil {
		return errors.Join(err, os.Rename(tmp, path))
	}
	failpoint.Hit("ledger/delete-synced")
	if err := os.Remove(tmp); err != nil { // a directory in the entry's place, with something in it
		return errors.Join(err, os.Rename(tmp, path))
	}
	failpoint.Hit("ledger/delete-removed")
	return nil
}

// replaceLink makes path a link to target, in one step where there is a link already.
func replaceLink(target, path string) error {
	err := os.Symlink(target, path)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	tmp := temporary(path)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		_ = os.Remove(tmp)
		return err
	}
	return nil
}

// namesIn lists a directory in the order of its names; one that is not there is empty.
func namesIn(dir string) ([]string, error) {
	names, err := host.Names(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	slices.Sort(names)
	return names, err
}
