package host

import (
	"io/fs"
	"os"
	"strconv"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// OpenInRoot walks a path below a directory as if that were "/", and gives a handle (O_PATH) of
// what it leads to: no link and no ".." leads out. It is pathrs.OpenatInRoot without what that does
// to name the handle by its path, for which it mounts a procfs of its own: two thirds of the time
// of a look at an image. Without openat2 (Linux before 5.6, old seccomp profiles), and where
// renames or signals keep interrupting the kernel's walk, it is pathrs' own.
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

// Reopen opens for reading what a handle is of. It goes through this process's own /proc/self/fd,
// which is the node's, and makes sure that it got what it meant. It waits for nobody: a process
// that still runs in an image could hold a lease on its files (fcntl(2), F_SETLEASE).
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
		// else os starts the runtime's poller for it; of a pipe a read must not wait
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "open", Path: handle.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), handle.Name()), nil
}
