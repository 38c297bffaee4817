package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Durability says which failures a written file survives.
type Durability bool

// A replaced file always survives the end of the process. A Durable one also survives a power
// failure, which files below /run need not.
const (
	Volatile Durability = false
	Durable  Durability = true
)

// ReplaceFile puts data at path. A reader sees the old content or the new content, never a part.
// Only this program may write into the directory. On an error no temporary file remains, and the
// old content stays, unless only the last step failed, which makes a Durable replacement durable.
// It does not start Go's network poller, as ReadFile does not.
func ReplaceFile(path string, data []byte, mode os.FileMode, durability Durability) (err error) {
	draft, err := replacement(path, data, mode, durability)
	if err == nil {
		if err = rename(draft, path); err != nil {
			unlink(draft)
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

// ReplaceFiles is ReplaceFile for several files of a directory, by their names, which survive a
// power failure. They wait for the disk at the same time, and once for the directory. On an error
// some of them may have their new content.
func ReplaceFiles(dir string, content map[string][]byte, mode os.FileMode) (err error) {
	var each sync.WaitGroup
	var mu sync.Mutex
	drafts := map[string]string{}
	for name, data := range content {
		each.Go(func() {
			draft, e := replacement(filepath.Join(dir, name), data, mode, Durable)
			mu.Lock()
			defer mu.Unlock()
			if err = errors.Join(err, e); e == nil {
				drafts[name] = draft
			}
		})
	}
	each.Wait()
	for name, draft := range drafts {
		if err == nil {
			err = rename(draft, filepath.Join(dir, name))
		}
		if err != nil {
			unlink(draft)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write %d files in %s: %w", len(content), dir, err)
	}
	return SyncDir(dir)
}

// OpenFile is os.OpenFile for a regular file, without starting Go's network poller: os registers
// each non-blocking file there. If path is something else, a pipe for example, OpenFile does not
// wait.
func OpenFile(path string, flags int, mode uint32) (*os.File, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, mode)
		if err == unix.EINTR {
			continue
		}
		if err == nil {
			if err = unix.SetNonblock(fd, false); err != nil { // otherwise os starts the poller
				unix.Close(fd)
			}
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

// RemoveDrafts removes the drafts that killed ReplaceFile calls have left in dir. It removes those
// for files whose names begin with prefix and that were last written before since. A directory that
// does not exist has none.
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

// replacement writes a draft beside the file that it is to replace. On an error it leaves no draft.
func replacement(path string, data []byte, mode os.FileMode,
	durability Durability) (draft string, err error) {
	fd, draft, err := create(filepath.Dir(path) + "/." + filepath.Base(path) + ".")
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: draft, Err: err}
	}
	op, err := "write", Take(Step{Kind: Writes, Path: draft, Data: data},
		func() error { return write(fd, data) })
	if err == nil {
		op, err = "chmod", unix.Fchmod(fd, uint32(mode.Perm()))
	}
	if err == nil && durability == Durable {
		op, err = "fsync", Take(Step{Kind: Syncs, Path: draft}, func() error { return unix.Fsync(fd) })
	}
	if e := unix.Close(fd); err == nil { // close reports errors that a network file system found late
		op, err = "close", e
	}
	if err != nil {
		unlink(draft)
		return "", &fs.PathError{Op: op, Path: draft, Err: err}
	}
	return draft, nil
}

func rename(draft, path string) error {
	return Take(Step{Kind: Renames, Path: draft, To: path}, func() error { return unix.Rename(draft, path) })
}

// unlink removes a draft that will not replace its file.
func unlink(draft string) {
	_ = Take(Step{Kind: Removes, Path: draft}, func() error { return unix.Unlink(draft) })
}

// create makes a file under a name that is not in use. Drafts of a killed process keep their names;
// gpuledger check finds and names them.
func create(prefix string) (fd int, path string, err error) {
	pid := strconv.Itoa(os.Getpid())
	for try := range maxDrafts {
		path = prefix + pid + "-" + strconv.Itoa(try)
		err = Take(Step{Kind: Creates, Path: path}, func() (err error) {
			fd, err = createNew(path)
			return err
		})
		if err != unix.EEXIST {
			break
		}
	}
	return fd, path, err
}

func createNew(path string) (fd int, err error) {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	for {
		if fd, err = unix.Open(path, flags, 0o600); err != unix.EINTR {
			return fd, err
		}
	}
}

// maxDrafts is far more than the drafts of one file that can exist: those of this process's
// goroutines, and those of killed processes with its pid.
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

// SyncDir makes the names in a directory durable: a rename is durable only after its directory is
// synced.
func SyncDir(dir string) error {
	return Take(Step{Kind: SyncsDir, Path: dir}, func() error {
		d, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer d.Close()
		return d.Sync()
	})
}

// SyncFiles makes the contents of files durable, and waits for all of them at the same time.
func SyncFiles(files ...*os.File) (err error) {
	failed := make([]error, len(files))
	var all sync.WaitGroup
	for i, f := range files {
		if err := before(Step{Kind: Syncs, Path: f.Name()}); err != nil {
			failed[i] = err
			continue
		}
		all.Go(func() { failed[i] = f.Sync() })
	}
	all.Wait()
	for i, f := range files {
		after(Step{Kind: Syncs, Path: f.Name()}, failed[i])
	}
	return errors.Join(failed...)
}
