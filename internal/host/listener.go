package host

import (
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"
)

// Listener is the process that listens on the socket at a path, as the kernel knows it (SO_PEERCRED, unix(7): of who called listen), and
// which file that socket is, by device and inode. To be asked it connects, says nothing and goes. A link is not followed, and nobody who
// puts another socket there meanwhile has that one taken for the first.
func Listener(path string) (pid int, file [2]uint64, err error) {
	failed := func(op string, err error) (int, [2]uint64, error) {
		return 0, [2]uint64{}, &fs.PathError{Op: op, Path: path, Err: err}
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return failed("open", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return failed("stat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK { // the kernel would open what it is
		return failed("connect", unix.ENOTSOCK)
	}
	pid, err = peer("/proc/self/fd/"+strconv.Itoa(fd), unix.SOCK_STREAM)
	if err == unix.EPROTOTYPE {
		pid, err = peer("/proc/self/fd/"+strconv.Itoa(fd), unix.SOCK_SEQPACKET)
	}
	if err != nil {
		return failed("connect", err)
	}
	return pid, [2]uint64{uint64(st.Dev), st.Ino}, nil
}

// peer connects without waiting: where more wait already than the listener takes, that is EAGAIN.
func peer(socket string, kind int) (pid int, err error) {
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		return 0, err
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}
