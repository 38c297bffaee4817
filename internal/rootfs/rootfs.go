// Package rootfs makes changes in a container's root file system that a mount cannot. Before the
// start it enters the driver's libraries into ld.so.cache. After the end it removes the mount
// points that were made. The files belong to a tenant, and another container may change them
// meanwhile. So the package uses descriptors of directories below the root, follows no link out of
// it, and leaves unexpected files as they are.
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
	// ldconfig's own name for it; the next run overwrites what a crash leaves
	draftName = "ld.so.cache~"
)

// ErrNotOurs is the error for a root file system that was not made for the container, but is a
// directory of a user's.
var ErrNotOurs = errors.New("the root file system is a directory that was not made for the container")

// Tree is a container's root file system, with what may be changed there.
type Tree struct {
	Root   string   // the path that the runtime uses
	Bundle string   // the container's bundle
	Mounts []string // destinations of its mounts; files below them do not belong to the image
}

// Enter adds libraries to the image's ld.so.cache. A second call changes nothing. An error says why
// nothing was written. The loader then still finds the libraries where they are mounted; only
// programs that read the cache do not.
func (t Tree) Enter(libraries []Library) error {
	return t.change(func(old []cacheEntry) ([]cacheEntry, bool) { return merge(old, libraries), true })
}

// Listed returns the paths that the image's ld.so.cache has for libraries of these names. It
// returns none if the cache cannot be read.
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

// RemoveMountPoints removes the mount points that a runtime made for files: empty files that are
// not older than since, in nanoseconds of the epoch. It removes their names from ld.so.cache, too,
// and then those of dirs that are empty.
func (t Tree) RemoveMountPoints(places []string, since int64, dirs ...string) {
	root, err := t.open()
	if err != nil {
		return
	}
	defer root.Close()
	gone := map[string]bool{}
	for _, place := range places[:min(len(places), maxPlaces)] {
		if !t.covered(place) && removeMountPoint(root, place, since) {
			gone[place] = true
		}
	}
	if len(gone) == 0 {
		return
	}
	_ = t.change(func(old []cacheEntry) ([]cacheEntry, bool) { return without(old, gone) })
	for _, dir := range dirs {
		if above, err := host.OpenInRoot(root, filepath.Dir(dir)); err == nil && !t.covered(dir) {
			_ = unix.Unlinkat(int(above.Fd()), filepath.Base(dir), unix.AT_REMOVEDIR)
			above.Close()
		}
	}
}

// maxPlaces limits how long a delete can take; a full driver has some 200 files.
const maxPlaces = 1024

// change rewrites the cache if the function changes it.
func (t Tree) change(change func([]cacheEntry) ([]cacheEntry, bool)) error {
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

// covered reports whether a mount of the container's own is at or above a path.
func (t Tree) covered(path string) bool {
	for _, m := range t.Mounts {
		m = filepath.Clean("/" + m)
		if m != "/" && host.Within(path, m) {
			return true
		}
	}
	return false
}

// open opens the root if it was made for the container: engines mount one, or put it into the
// bundle. Any other directory is a user's own, as with `podman run --rootfs` or `ctr run --rootfs`,
// and only the runtime may write there. That is also true of the node's own root, although it is a
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

// isMount reports whether a directory is the root of a mount. Kernels before 5.8 do not report it;
// there it is one if its parent is on another file system.
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

// openat opens a name in a directory and follows no link.
func openat(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: "/" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// readCache reads the cache if it is a regular file: opening a pipe or a device can have effects.
// It returns nil without one.
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
		return nil, errUnknownFormat
	}
	f, err := host.Reopen(handle)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content := make([]byte, st.Size)
	n, err := io.ReadFull(f, content)
	if errors.Is(err, io.ErrUnexpectedEOF) { // another process cut it meanwhile
		err = nil
	}
	return content[:n], err
}

// replace replaces the cache, with the owner of /etc and its mode without execute bits.
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

// create creates the draft, in place of one that a crash has left.
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

// removeMountPoint removes a mount point that a runtime made. It reports whether nothing is there
// now.
func removeMountPoint(root *os.File, place string, since int64) bool {
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
