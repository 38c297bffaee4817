// Package rootfs does in a container's root file system what a mount cannot: before the start it
// enters the driver's libraries into ld.so.cache, after the end it takes away what was made for the
// mounts. The files are a tenant's, and another container may change them meanwhile: everything
// goes through file descriptors of directories below the root, no link is followed out of it, and
// what is odd stays as it is.
package rootfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

const (
	cacheName = "ld.so.cache"
	// ldconfig's own name for it: what a crash leaves behind, the next one writes over
	draftName = "ld.so.cache~"
)

// ErrNotOurs says that a root file system was not made for the container: it is somebody's
// directory.
var ErrNotOurs = errors.New("the root file system is a directory that was not made for the container")

// Tree is a container's root file system and what may be done there.
type Tree struct {
	Root   string   // as the runtime finds it
	Bundle string   // the container's
	Mounts []string // destinations of its mounts: below them is not the image
}

// Enter puts libraries into the image's ld.so.cache. A second time changes nothing. An error says
// why nothing was written; the loader then finds the libraries where they are mounted, and only who
// asks the cache does not.
func (t Tree) Enter(libraries []Library) error {
	return t.change(func(old []entry) ([]entry, bool) { return merge(old, libraries), true })
}

// Listed are the places that the image's ld.so.cache has for libraries of these names. Of a cache
// that cannot be read, none.
func (t Tree) Listed(names []string) (places []string) {
	root, err := openDir(t.Root)
	if err != nil || t.covered("/etc/"+cacheName) {
		return nil
	}
	defer root.Close()
	etc, err := openat(root, "etc", unix.O_DIRECTORY|unix.O_RDONLY)
	if err != nil {
		return nil
	}
	defer etc.Close()
	content, err := readCache(etc)
	if err != nil {
		return nil
	}
	entries, _ := parse(content)
	for _, e := range entries {
		if slices.Contains(names, e.name) {
			places = append(places, e.path)
		}
	}
	return places
}

// Tidy removes, of the places where files were mounted, those that a runtime made for it: empty
// files that are not older than since, in nanoseconds of the epoch. Their names leave ld.so.cache,
// too. Of the directories those go that are empty then.
func (t Tree) Tidy(places []string, since int64, dirs ...string) {
	root, err := t.open()
	if err != nil {
		return
	}
	defer root.Close()
	gone := map[string]bool{}
	for _, place := range places[:min(len(places), maxPlaces)] {
		if !t.covered(place) && tidy(root, place, since) {
			gone[place] = true
		}
	}
	if len(gone) == 0 {
		return
	}
	_ = t.change(func(old []entry) ([]entry, bool) { return without(old, gone) })
	for _, dir := range dirs {
		if above, err := host.OpenInRoot(root, filepath.Dir(dir)); err == nil && !t.covered(dir) {
			_ = unix.Unlinkat(int(above.Fd()), filepath.Base(dir), unix.AT_REMOVEDIR)
			above.Close()
		}
	}
}

// maxPlaces bounds how long a delete is held up; a full driver has some 200.
const maxPlaces = 1024

// change rewrites the cache, where that changes it.
func (t Tree) change(change func([]entry) ([]entry, bool)) error {
	if t.covered("/etc/" + cacheName) {
		return errors.New("a mount of the container's lies over it")
	}
	root, err := t.open()
	if err != nil {
		return err
	}
	defer root.Close()
	etc, err := openat(root, "etc", unix.O_DIRECTORY|unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer etc.Close()
	before, err := readCache(etc)
	if err != nil {
		return err
	}
	old, err := parse(before)
	if err != nil {
		return fmt.Errorf("the image's is left as it is: %w", err)
	}
	entries, changed := change(old)
	if !changed {
		return nil
	}
	if after := encode(entries); string(after) != string(before) {
		return replace(etc, after)
	}
	return nil
}

// covered reports whether a mount of the container's own lies at or over a path.
func (t Tree) covered(path string) bool {
	for _, m := range t.Mounts {
		m = filepath.Clean("/" + m)
		if m != "/" && (path == m || strings.HasPrefix(path, m+"/")) {
			return true
		}
	}
	return false
}

// open opens the root, if it was made for the container: engines mount one, or put it into the
// bundle. Any other directory is somebody's own, as with `podman run --rootfs` or `ctr run
// --rootfs`, and nothing but the runtime writes there. So is the node's own root, though it is a
// mount.
func (t Tree) open() (*os.File, error) {
	root, err := openDir(t.Root)
	if err != nil {
		return nil, err
	}
	if !isNodes(root) &&
		(strings.HasPrefix(filepath.Clean(t.Root), filepath.Clean(t.Bundle)+"/") || isMount(root)) {
		return root, nil
	}
	root.Close()
	return nil, ErrNotOurs
}

// isNodes reports whether a directory is the root of the node itself.
func isNodes(dir *os.File) bool {
	var st, own unix.Stat_t
	return unix.Fstat(int(dir.Fd()), &st) != nil || unix.Stat("/", &own) != nil ||
		st.Dev == own.Dev && st.Ino == own.Ino
}

func openDir(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// isMount reports whether a directory is the root of a mount. Kernels before 5.8 do not tell; there
// it is one if its parent is of another file system.
func isMount(dir *os.File) bool {
	var st, parent unix.Statx_t
	if unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH, 0, &st) != nil {
		return false
	}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	}
	return unix.Statx(int(dir.Fd()), "..", 0, 0, &parent) == nil && (parent.Dev_major != st.Dev_major ||
		parent.Dev_minor != st.Dev_minor)
}

// openat opens a name in a directory, never through a link.
func openat(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: "/" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// readCache reads the cache if it is a regular file: of a pipe or a device, opening alone would do
// something. Nil without one.
func readCache(etc *os.File) ([]byte, error) {
	handle, err := openat(etc, cacheName, unix.O_PATH)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(handle.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxCache {
		return nil, errOdd
	}
	f, err := host.Reopen(handle)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content := make([]byte, st.Size)
	n, err := io.ReadFull(f, content)
	if errors.Is(err, io.ErrUnexpectedEOF) { // it was cut short meanwhile
		err = nil
	}
	return content[:n], err
}

// replace puts a new cache in place of the old one, with the owner of /etc, and its mode as far as
// a file has one.
func replace(etc *os.File, content []byte) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(etc.Fd()), &st); err != nil {
		return err
	}
	draft, err := create(etc)
	if err != nil {
		return err
	}
	defer draft.Close()
	_, err = draft.Write(content)
	if err == nil {
		err = unix.Fchown(int(draft.Fd()), int(st.Uid), int(st.Gid))
	}
	if err == nil {
		err = unix.Fchmod(int(draft.Fd()), st.Mode&0o666)
	}
	if err == nil {
		err = unix.Renameat(int(etc.Fd()), draftName, int(etc.Fd()), cacheName)
	}
	if err != nil {
		_ = unix.Unlinkat(int(etc.Fd()), draftName, 0)
	}
	return err
}

// create makes the draft anew, in place of one that a crash has left.
func create(etc *os.File) (*os.File, error) {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(int(etc.Fd()), draftName, flags, 0o600)
	if errors.Is(err, unix.EEXIST) {
		if err = unix.Unlinkat(int(etc.Fd()), draftName, 0); err == nil {
			fd, err = unix.Openat(int(etc.Fd()), draftName, flags, 0o600)
		}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "create", Path: "/etc/" + draftName, Err: err}
	}
	return os.NewFile(uintptr(fd), draftName), nil
}

// tidy removes a mount point that a runtime made, and tells whether nothing is there now.
func tidy(root *os.File, place string, since int64) bool {
	dir, err := host.OpenInRoot(root, filepath.Dir(place))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer dir.Close()
	var st unix.Stat_t
	err = unix.Fstatat(int(dir.Fd()), filepath.Base(place), &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != 0 ||
		st.Nlink != 1 || st.Ctim.Nano() < since {
		return errors.Is(err, fs.ErrNotExist)
	}
	return unix.Unlinkat(int(dir.Fd()), filepath.Base(place), 0) == nil
}
