package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Durability is how much a write survives.
type Durability bool

// A replaced file survives the process always; Durable also survives a power cut. Files below /run need not.
const (
	Volatile Durability = false
	Durable  Durability = true
)

// ReplaceFile puts data at path so that a reader sees the old content or the new and never a part. Nobody else may
// write into the directory. On an error the old content stands and no temporary file is left.
func ReplaceFile(path string, data []byte, mode os.FileMode, durability Durability) (err error) {
	dir, name := filepath.Dir(path), filepath.Base(path)
	f, err := os.CreateTemp(dir, "."+name+".*")
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
			err = fmt.Errorf("cannot write %s: %w", path, err)
		}
	}()
	if err := writeAll(f, data, mode, durability); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	if durability == Durable {
		return SyncDir(dir)
	}
	return nil
}

// RemoveDrafts removes what ReplaceFile has left of files whose names begin with prefix, where it was killed: drafts that nobody has
// written to since then. A directory that is not there has none.
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

// writeAll fills and closes a new file. Close reports what a network file system noticed late.
func writeAll(f *os.File, data []byte, mode os.FileMode, durability Durability) error {
	_, err := f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil && durability == Durable {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
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
