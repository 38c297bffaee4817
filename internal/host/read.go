package host

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ReadFile reads a file of at most limit bytes. It does what os.ReadFile does without Go's network
// poller, which takes 50 microseconds to start and is not used for files.
func ReadFile(path string, limit int) ([]byte, error) {
	if err := before(Step{Kind: Reads, Path: path}); err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Size > 0 && st.Size < int64(limit) {
		// room for one more byte, so that the first read shows the end of the file
		return readRest(fd, path, make([]byte, 0, st.Size+1), limit, int(st.Size))
	}
	var line [512]byte // files in /proc report size 0, and most have one line
	n, err := read(fd, line[:])
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	room := n + 1
	if n == len(line) {
		room = 16 * n
	}
	return readRest(fd, path, append(make([]byte, 0, room), line[:n]...), limit, -1)
}

// readRest appends the rest of the file to data, to its end or until data has whole bytes. data has
// room for at least one more byte.
func readRest(fd int, path string, data []byte, limit, whole int) ([]byte, error) {
	for {
		n, err := read(fd, data[len(data):cap(data)])
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if data = data[:len(data)+n]; len(data) > limit {
			return nil, fmt.Errorf("%s is larger than %d bytes", path, limit)
		}
		if n == 0 || len(data) == whole { // the read had room for one more byte
			return data, nil
		}
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
	}
}

// eachLine calls do with each line of a file, without its end, until do returns false. More than
// limit bytes are an error, once do has seen the lines before; so is a line from 64 kB on. do may
// not keep the line.
func eachLine(path string, limit int, do func(line []byte) bool) error {
	if err := before(Step{Kind: Reads, Path: path}); err != nil {
		return err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	lines := bufio.NewScanner(fileReader(fd))
	for read := 0; lines.Scan(); {
		if read += len(lines.Bytes()) + 1; read > limit {
			return fmt.Errorf("%s is larger than %d bytes", path, limit)
		}
		if !do(lines.Bytes()) {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return nil
}

// fileReader reads an open file.
type fileReader int

func (fd fileReader) Read(room []byte) (int, error) {
	n, err := read(int(fd), room)
	if err == nil && n == 0 {
		return 0, io.EOF
	}
	return max(n, 0), err
}

func read(fd int, room []byte) (n int, err error) {
	for {
		if n, err = unix.Read(fd, room); err != unix.EINTR {
			return n, err
		}
	}
}

// ReadHead fills head with the beginning of a file; a shorter file is io.ErrUnexpectedEOF. flags
// are added to the open. It does not wait if path is something else, a pipe for example.
func ReadHead(path string, head []byte, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	for err = unix.EINTR; err == unix.EINTR; {
		var n int
		if n, err = unix.Pread(fd, head, 0); err == nil && n < len(head) {
			err = io.ErrUnexpectedEOF
		}
	}
	if err != nil {
		return &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return nil
}

// Names lists the names in a directory, unsorted. It takes a third of the time of os.ReadDir.
func Names(dir string) (names []string, err error) {
	if err := before(Step{Kind: Reads, Path: dir}); err != nil {
		return nil, err
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return entries(fd, dir, math.MaxInt)
}

// NamesIn lists the names in the directory of a handle (OpenInRoot), unsorted. It stops when it has
// enough of them.
func NamesIn(dir *os.File, enough int) (names []string, err error) {
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir.Name(), Err: err}
	}
	defer unix.Close(fd)
	return entries(fd, dir.Name(), enough)
}

func entries(fd int, dir string, enough int) (names []string, err error) {
	var buffer [4096]byte
	for len(names) < enough {
		n, err := unix.ReadDirent(fd, buffer[:])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, &fs.PathError{Op: "readdirent", Path: dir, Err: err}
		case n == 0:
			return names, nil
		}
		_, _, names = unix.ParseDirent(buffer[:n], -1, names)
	}
	return names, nil
}

// RealPath resolves every symbolic link of a path, as filepath.EvalSymlinks does, with few system
// calls: the kernel resolves the path once and reports its target. It opens the target only as a
// path (O_PATH).
func RealPath(path string) (string, error) {
	t, err := Resolve(path)
	return t.Path, err
}

// ResolvedFile is the file that a path leads to.
type ResolvedFile struct {
	Path      string // without links
	Mode      uint32 // type and permissions, as in st_mode
	UID, GID  uint32
	Dev, Rdev uint64
	// the id of its mount, as in /proc/self/mountinfo; 0 before Linux 5.8, which does not report it
	Mount uint64
	// Shifting says that the path passes through a link of /proc to what a process has open, and
	// may lead elsewhere later. A link of /proc/self has another target in each process
	// (/proc/self/cwd, /dev/stdin), and any process can change what its own links lead to
	// (/proc/7/cwd). It is not set for a network namespace (/proc/7/ns/net).
	Shifting bool
}

// IsDir reports whether the path leads to a directory.
func (t ResolvedFile) IsDir() bool { return t.Mode&unix.S_IFMT == unix.S_IFDIR }

// IsSocket reports whether the path leads to a socket.
func (t ResolvedFile) IsSocket() bool { return t.Mode&unix.S_IFMT == unix.S_IFSOCK }

// Resolve resolves a path; it opens the target only as a path (O_PATH). With fs.ErrNotExist and
// unix.ENOTDIR, t.Path may still be set: the path has no link and no "..", so its target would
// be certain. Behind a ".." it is unknown, because a missing part before it could become a link.
func Resolve(path string) (t ResolvedFile, err error) {
	// Most paths have no link and are already real: no readlink is needed for them.
	if filepath.IsAbs(path) {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_NO_SYMLINKS})
		switch err {
		case nil:
			defer unix.Close(fd)
			t.Path = filepath.Clean(path)
			err = t.readStatus(fd, path)
			return t, err
		case unix.ELOOP, unix.ENOSYS, unix.EPERM: // a link, or no openat2 as below
		case unix.ENOENT, unix.ENOTDIR:
			if !strings.Contains(path, "/..") {
				t.Path = filepath.Clean(path)
			}
			fallthrough
		default:
			return t, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if err == unix.ELOOP && t.readNetwork(path) {
		return t, nil
	}
	switch err {
	case unix.ELOOP, unix.ENOSYS,
		unix.EPERM: // Linux before 5.6 has no openat2, and old seccomp profiles refuse it
		t.Shifting = err == unix.ELOOP || strings.Contains(path, "/proc/self/") ||
			strings.Contains(path, "/proc/thread-self/")
		fd, err = unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return ResolvedFile{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	err = t.readPath(fd, path)
	return t, err
}

// readNetwork fills in t if path is the link to a process's network namespace, by the path of that
// link. Whatever process has the pid later, the link leads to a network namespace and to no other
// file, so it is as certain as a path without links. The other namespaces in the directory lead to
// files or processes of the node.
func (t *ResolvedFile) readNetwork(path string) bool {
	dir, name := filepath.Split(path)
	if name != "net" || dir == "" {
		return false
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var fs unix.Statfs_t
	var at, link ResolvedFile
	if unix.Fstatfs(fd, &fs) != nil || fs.Type != unix.PROC_SUPER_MAGIC || at.readPath(fd, dir) != nil ||
		filepath.Base(at.Path) != "ns" || link.stat(fd, name, 0) != nil {
		return false
	}
	link.Path = at.Path + "/" + name
	*t = link
	return true
}

// ResolveLinkless is Resolve for a path whose directory is known to have no links. The error is
// unix.ELOOP if the path itself is a link.
func ResolveLinkless(path string) (t ResolvedFile, err error) {
	err = t.stat(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	if err == nil && t.Mode&unix.S_IFMT == unix.S_IFLNK {
		err = unix.ELOOP
	}
	if err != nil {
		return ResolvedFile{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	t.Path = path
	return t, nil
}

// ResolveWithin resolves rest below dir without leaving the mount of dir. The error is unix.EXDEV
// if it would leave it. It does not touch other mounts, so a mount whose server is dead cannot
// block it. It does not follow a link at the end of the path.
func ResolveWithin(dir, rest string) (t ResolvedFile, err error) {
	fd, err := openNear(dir, rest)
	if err != nil {
		return ResolvedFile{}, err
	}
	defer unix.Close(fd)
	err = t.readPath(fd, dir+"/"+rest)
	return t, err
}

// openNear returns a path descriptor (O_PATH) of the file for ResolveWithin.
func openNear(dir, rest string) (int, error) {
	top, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(top)
	fd, err := openBelow(top, rest)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: dir + "/" + rest, Err: err}
	}
	return fd, nil
}

func openBelow(top int, rest string) (int, error) {
	fd, err := unix.Openat2(top, rest, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS})
	if err == unix.ENOSYS || err == unix.EPERM { // as in Resolve; this call may leave the mount
		fd, err = unix.Openat(top, rest, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	}
	return fd, err
}

// Top is a directory that is kept open for many looks below it.
type Top struct{ fd int }

// OpenTop opens it as a path (O_PATH). An error shows at each look.
func OpenTop(dir string) Top {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		fd = -1
	}
	return Top{fd}
}

// Close ends the looks.
func (t Top) Close() { _ = unix.Close(t.fd) }

// Status is ResolveWithin without the real path. If nothing is there it takes one system call.
func (t Top) Status(rest string) (file ResolvedFile, err error) {
	fd, err := openBelow(t.fd, rest)
	if err != nil {
		return file, err
	}
	defer unix.Close(fd)
	err = file.readStatus(fd, rest)
	return file, err
}

// readPath fills in the path and the status of an open file.
func (t *ResolvedFile) readPath(fd int, path string) error {
	name := make([]byte, unix.PathMax)
	n, err := unix.Readlink("/proc/self/fd/"+strconv.Itoa(fd), name)
	if err != nil {
		return &fs.PathError{Op: "readlink", Path: path, Err: err}
	}
	t.Path = string(name[:n])
	return t.readStatus(fd, path)
}

// readStatus fills in the status of an open file.
func (t *ResolvedFile) readStatus(fd int, path string) error {
	if err := t.stat(fd, "", unix.AT_EMPTY_PATH); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return nil
}

// stat fills in the status of a file. One statx call also reports the mount.
func (t *ResolvedFile) stat(dir int, path string, flags int) error {
	var st unix.Statx_t
	switch err := unix.Statx(dir, path, flags,
		unix.STATX_TYPE|unix.STATX_MODE|unix.STATX_UID|unix.STATX_GID|unix.STATX_MNT_ID, &st); err {
	case nil:
	case unix.ENOSYS, unix.EPERM: // before Linux 4.11, and old seccomp profiles refuse it
		return t.statOld(dir, path, flags)
	default:
		return err
	}
	t.Mode, t.UID, t.GID = uint32(st.Mode), st.Uid, st.Gid
	t.Dev = unix.Mkdev(st.Dev_major, st.Dev_minor)
	t.Rdev = unix.Mkdev(st.Rdev_major, st.Rdev_minor)
	if st.Mask&unix.STATX_MNT_ID != 0 {
		t.Mount = st.Mnt_id
	}
	return nil
}

func (t *ResolvedFile) statOld(dir int, path string, flags int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, path, &st, flags); err != nil {
		return err
	}
	t.Mode, t.UID, t.GID = st.Mode, st.Uid, st.Gid
	t.Dev, t.Rdev = uint64(st.Dev), uint64(st.Rdev)
	return nil
}

// Within reports whether a path is a directory or below it. Both are clean. It allocates nothing:
// a create compares each of its mounts with some eighty places.
func Within(path, dir string) bool {
	dir = strings.TrimSuffix(dir, "/")
	return strings.HasPrefix(path, dir) && (len(path) == len(dir) || path[len(dir)] == '/')
}
