package host

import (
	"io/fs"
	"os"
	"strconv"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// OpenInRoot resolves a path with root as "/", and returns a handle (O_PATH) of its target. No link
// and no ".." leads out of root. It is pathrs.OpenatInRoot without its step that names the handle
// by its path. That step mounts a procfs of its own, which takes two thirds of the time of reading
// an image. OpenInRoot calls pathrs.OpenatInRoot where there is no openat2 (Linux before 5.6, old
// seccomp profiles) and where renames or signals interrupt the kernel's walk.
func OpenInRoot(root *os.File, path string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(int(root.Fd()), path, &how)
	switch err {
	case nil:
		return os.NewFile(uintptr(fd), path), nil
	case unix.ENOSYS, unix.EPERM, unix.EAGAIN, unix.EINTR:
		return pathrs.OpenatInRoot(root, path)
	}
	return nil, &fs.PathError{Op: "open", Path: path, Err: err}
}

// Reopen opens the file of a handle for reading. It opens /proc/self/fd of the node's /proc, and
// checks that it got the same file. It never waits: a process that still runs in an image could
// hold a lease on its files (fcntl(2), F_SETLEASE).
func Reopen(handle *os.File) (*os.File, error) {
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(handle.Fd())),
		unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: handle.Name(), Err: err}
	}
	var meant, got unix.Stat_t
	err = unix.Fstat(int(handle.Fd()), &meant)
	if err == nil {
		err = unix.Fstat(fd, &got)
	}
	if err == nil && (meant.Dev != got.Dev || meant.Ino != got.Ino) {
		err = unix.ESTALE
	}
	if err == nil && got.Mode&unix.S_IFMT == unix.S_IFREG {
		// otherwise os starts Go's poller for it; pipes stay non-blocking, because a read of one
		// must not wait
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "open", Path: handle.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), handle.Name()), nil
}
