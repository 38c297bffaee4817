package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/host"
)

// temporary is where the next content of a file is written. One name for each file is enough,
// because only the holder of the lock writes, and a crash leaves one file behind, not many.
func temporary(path string) string {
	dir, name := filepath.Split(path)
	return dir + "." + name + ".tmp"
}

// keptSuffix is that of the file which is replaced, while it may have to be put back.
const keptSuffix = ".old"

// replaceDurably puts data at path so that it survives a power cut, and before it the names in the
// directories unsynced and those in path's own: what a placement counts by must not come back when
// its grant is there. On an error the old content stays. If the directory's sync fails after the
// rename, the rename is undone: a caller that gets an error does not expect the new content to come
// back. After a power cut it may, if named says that it was there.
func replaceDurably(path string, data []byte, unsynced []string) (named bool, err error) {
	tmp, old := temporary(path), temporary(path)+keptSuffix
	defer func() {
		if err != nil {
			_ = host.Remove(tmp)
			_ = host.Remove(old)
		}
	}()
	draft, err := writeNew(tmp, data)
	if draft != nil {
		err = errors.Join(err, syncAndClose([]*os.File{draft}, append(unsynced, filepath.Dir(path))))
	}
	if err != nil {
		return false, err
	}
	failpoint.Hit("ledger/put-written")
	kept, err := keepOld(path, old)
	if err != nil {
		return false, err
	}
	failpoint.Hit("ledger/put-kept-old")
	if err := host.Rename(tmp, path); err != nil {
		return false, err
	}
	failpoint.Hit("ledger/put-renamed")
	if err := syncDir(filepath.Dir(path)); err != nil {
		return true, errors.Join(err, undoReplace(path, old, kept))
	}
	failpoint.Hit("ledger/put-synced")
	if kept {
		_ = host.Remove(old)
	}
	failpoint.Hit("ledger/put-forgot-old")
	return true, nil
}

// createDurably makes new files in a directory so that they survive a power cut, and before them
// the names in the directories unsynced and those in their own (replaceDurably says why). The file
// systems write what is synced at the same time in one go. On an error there is none of the files;
// named says whether there was one, as for replaceDurably.
func createDurably(dir string, content map[string][]byte, unsynced []string) (named bool, err error) {
	defer func() {
		for path := range content {
			if err != nil {
				_ = host.Remove(temporary(path))
				_ = host.Remove(path)
			}
		}
	}()
	var drafts []*os.File
	paths := slices.Sorted(maps.Keys(content))
	for _, path := range paths {
		f, e := writeNew(temporary(path), content[path])
		if f != nil {
			drafts = append(drafts, f)
		}
		if err = e; err != nil {
			break
		}
	}
	if err = errors.Join(err, syncAndClose(drafts, append(unsynced, dir))); err != nil {
		return false, err
	}
	failpoint.Hit("ledger/put-written")
	for _, path := range paths {
		if err := host.Rename(temporary(path), path); err != nil {
			return named, err
		}
		named = true
	}
	failpoint.Hit("ledger/put-renamed")
	if err := syncDir(dir); err != nil {
		return named, err
	}
	failpoint.Hit("ledger/put-synced")
	return named, nil
}

// syncDir is host.SyncDir; a test makes it fail.
var syncDir = host.SyncDir

// writeNew makes a new file: what a crash left at path may be a second name of a file that readers
// use. It returns the file, which is not synced yet, also with an error of writing.
func writeNew(path string, data []byte) (f *os.File, err error) {
	if err := host.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	err = host.Take(host.Step{Kind: host.Creates, Path: path}, func() (err error) {
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, host.Take(host.Step{Kind: host.Writes, Path: path, Data: data}, func() error {
		_, err := f.Write(data)
		return err
	})
}

// syncAndClose syncs files, and the names in directories. A file system with a journal has little
// to do for all but the first.
func syncAndClose(files []*os.File, dirs []string) (err error) {
	var beside sync.WaitGroup
	host.Go(&beside, func() { err = host.SyncFiles(files...) })
	var failed error
	for _, dir := range dirs {
		failed = errors.Join(failed, syncDir(dir))
	}
	beside.Wait()
	for _, f := range files {
		err = errors.Join(err, f.Close())
	}
	return errors.Join(err, failed)
}

// keepOld gives the file at path a second name, by which a replacement can be undone.
func keepOld(path, old string) (bool, error) {
	if err := host.Remove(old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	err := host.Link(path, old)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func undoReplace(path, old string, kept bool) error {
	if kept {
		return host.Rename(old, path)
	}
	return host.Remove(path)
}

// deleted is where the entry of a grant is while it is deleted, and as long as some of what goes
// with it is left.
func deleted(path string) string {
	dir, name := filepath.Split(path)
	return dir + "." + name + deletedSuffix
}

const deletedSuffix = ".deleted"

// removeDurably removes a file so that it does not come back after a power cut, and then what goes
// with it. On an error the file is there as before.
func removeDurably(path string, rest func() error) error {
	if names, err := namesIn(path); err == nil && len(names) > 0 {
		return fmt.Errorf("%s is a directory with something in it", path)
	}
	gone := deleted(path)
	_ = host.Remove(gone) // left by a crash; if it stays, the rename fails
	if err := host.Rename(path, gone); err != nil {
		return err
	}
	failpoint.Hit("ledger/delete-renamed")
	if err := syncDir(filepath.Dir(path)); err != nil {
		return errors.Join(err, putBack(gone, path))
	}
	failpoint.Hit("ledger/delete-synced")
	if rest() == nil {
		_ = host.Remove(gone) // else the next repair does
	}
	failpoint.Hit("ledger/delete-removed")
	return nil
}

// putBack undoes a removal, which may be durable already.
func putBack(gone, path string) error {
	if err := host.Rename(gone, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// replaceLink makes path a link to target. If there is a link already, it replaces it in one step.
func replaceLink(target, path string) error {
	err := host.Symlink(target, path)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	tmp := temporary(path)
	if err := host.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := host.Symlink(target, tmp); err != nil {
		return err
	}
	if err := host.Rename(tmp, path); err != nil {
		_ = host.Remove(tmp)
		return err
	}
	return nil
}

// namesIn lists a directory in the order of its names. A directory that does not exist is empty.
func namesIn(dir string) ([]string, error) {
	names, err := host.Names(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	slices.Sort(names)
	return names, err
}

func isNotDir(err error) bool { return errors.Is(err, unix.ENOTDIR) }
