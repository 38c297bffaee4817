package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// tree is a directory used as the root of a file system: links lead to their targets in it, never
// out of it. A driver root is often a container's, whose absolute links start at its own root.
type tree struct {
	root *os.File // O_PATH
	path string   // its real path
}

func openTree(path string) (tree, error) {
	root, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return tree{}, err
	}
	t := tree{root: root}
	if t.path, err = pathOf(root); err != nil {
		root.Close()
	}
	return t, err
}

func (t tree) close() { t.root.Close() }

// pathOf asks the kernel what an open file is called.
func pathOf(f *os.File) (string, error) {
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
}

// found is what a path leads to.
type found struct {
	path string // below the root, without links
	mode os.FileMode
}

// at follows a path. errors.Is(err, fs.ErrNotExist) tells that it leads nowhere.
func (t tree) at(path string) (found, error) {
	f, err := pathrs.OpenatInRoot(t.root, path)
	if err != nil {
		return found{}, err
	}
	defer f.Close()
	return t.look(f)
}

func (t tree) look(f *os.File) (found, error) {
	info, err := f.Stat()
	if err != nil {
		return found{}, err
	}
	path, err := pathOf(f)
	if err != nil {
		return found{}, err
	}
	below, inside := strings.CutPrefix(path, strings.TrimSuffix(t.path, "/"))
	if path == t.path {
		below = "/"
	}
	if !inside || !strings.HasPrefix(below, "/") {
		return found{}, fmt.Errorf("%s lies outside of %s", path, t.path)
	}
	return found{path: below, mode: info.Mode()}, nil
}

// open opens a regular file for reading. Nothing else is opened: opening a pipe waits, opening a
// device acts.
func (t tree) open(path string) (*os.File, error) {
	f, err := pathrs.OpenatInRoot(t.root, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is no regular file", path))
	}
	return pathrs.Reopen(f, unix.O_RDONLY|unix.O_CLOEXEC)
}

// maxEntries bounds a directory: /usr/lib of a full desktop has some thousand.
const maxEntries = 1 << 16

// list names what lies in a directory, sorted. One that is not there is empty.
func (t tree) list(dir string) ([]string, error) {
	f, err := pathrs.OpenatInRoot(t.root, dir)
	if leadsNowhere(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.IsDir() {
		return nil, err
	}
	d, err := pathrs.Reopen(f, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxEntries)
	if len(names) == maxEntries {
		return nil, fmt.Errorf("%s has more than %d entries", dir, maxEntries)
	}
	slices.Sort(names)
	if len(names) == 0 { // io.EOF is what an empty one says
		return nil, nil
	}
	return names, err
}

// leadsNowhere reports whether a path ends at a missing file, at a file in place of a directory, or
// in a circle of links.
func leadsNowhere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// glob lists the paths below dir whose last part matches a pattern.
func (t tree) glob(dir, pattern string) ([]string, error) {
	names, err := t.list(dir)
	var paths []string
	for _, name := range names {
		if matched, _ := filepath.Match(pattern, name); matched {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths, err
}
