package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Durability is how much a write survives.
type Durability bool

// A replaced file survives the process always; Durable also survives a power cut. Files below /run
// need not.
const (
	Volatile Durability = false
	Durable  Durability = true
)

// ReplaceFile puts data at path so that a reader sees the old content or the new and never a part.
// Nobody else may write into the directory. On an error the old content stands and no temporary
// file is left. As ReadFile it does without the runtime's poller.
func ReplaceFile(path string, data []byte, mode os.FileMode, durability Durability) (err error) {
	draft, err := replacement(path, data, mode, durability)
	if err == nil {
		if err = unix.Rename(draft, path); err != nil {
			_ = unix.Unlink(draft)
			err = &os.LinkError{Op: "rename", Old: draft, New: path, Err: err}
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	if durability == Durable {
		return SyncDir(filepath.Dir(path))
	}
	return nil
}

// OpenFile is os.OpenFile of a regular file, without the runtime's poller as ReadFile: os has each
// file of which it does not know better watched, and is refused. What lies in the file's place, a
// pipe say, keeps nobody waiting.
func OpenFile(path string, flags int, mode uint32) (*os.File, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, mode)
		if err == unix.EINTR {
			continue
		}
		if err == nil {
			if err = unix.SetNonblock(fd, false); err != nil { // else os asks the poller all the same
				unix.Close(fd)
			}
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

// RemoveDrafts removes what ReplaceFile has left of files whose names begin with prefix, where it
// was killed: drafts that nobody has written to since then. A directory that is not there has none.
func RemoveDrafts(dir, prefix string, since time.Time) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "."+prefix) || !e.Type().IsRegular() {
			continue
		}
		if info, gone := e.Info(); gone == nil && info.ModTime().Before(since) {
			if e := os.Remove(filepath.Join(dir, e.Name())); e != nil && !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	return err
}

// replacement writes a file beside the one that it is to replace. On an error there is none.
func replacement(path string, data []byte, mode os.FileMode,
	durability Durability) (draft string, err error) {
	fd, draft, err := create(filepath.Dir(path) + "/." + filepath.Base(path) + ".")
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: draft, Err: err}
	}
	op, err := "write", write(fd, data)
	if err == nil {
		op, err = "chmod", unix.Fchmod(fd, uint32(mode.Perm()))
	}
	if err == nil && durability == Durable {
		op, err = "fsync", unix.Fsync(fd)
	}
	if e := unix.Close(fd); err == nil { // which reports what a network file system noticed late
		op, err = "close", e
	}
	if err != nil {
		_ = unix.Unlink(draft)
		return "", &fs.PathError{Op: op, Path: draft, Err: err}
	}
	return draft, nil
}

// create makes a file that was not there. What a killed process has left keeps its name; it is
// found and named by gpuledger check.
func create(prefix string) (fd int, path string, err error) {
	pid := strconv.Itoa(os.Getpid())
	for try := range maxDrafts {
		path = prefix + pid + "-" + strconv.Itoa(try)
		for {
			fd, err = unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC,
				0o600)
			if err != unix.EINTR {
				break
			}
		}
		if err != unix.EEXIST {
			break
		}
	}
	return fd, path, err
}

// maxDrafts is far above how many drafts of one file there can be: of this process's goroutines,
// and left by processes of its number.
const maxDrafts = 10000

func write(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil && err != unix.EINTR {
			return err
		}
		data = data[max(n, 0):]
	}
	return nil
}

// SyncDir makes names in the directory durable: a rename is not until its directory is synced.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
