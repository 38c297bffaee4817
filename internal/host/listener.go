package host

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Listener returns the process that listens on the socket at a path, and the device and inode of
// that socket. The kernel names the process that called listen (SO_PEERCRED, unix(7)). Listener
// connects and disconnects without sending anything. It does not follow a link. If another socket
// replaces the file meanwhile, Listener still uses the first one.
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
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK { // a connect needs a socket
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

// peer returns the pid of the process that listens on a socket. It connects without waiting: if the
// queue of the listener is full, the error is EAGAIN.
func peer(socket string, kind int) (pid int, err error) {
	cred, err := peerOf(socket, kind)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// peerOf returns what the kernel knows of the process that listens on a socket.
func peerOf(socket string, kind int) (*unix.Ucred, error) {
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		return nil, err
	}
	return unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
}

// NodeListens reports whether a process of the node's own root listens on the socket at a path
// below dir. It resolves the path as ResolveWithin does. It is false for sockets that a container
// or a user of the node can make, and where that is unknown. The process may be in another network
// namespace: the path leads to its socket all the same.
func (h Host) NodeListens(dir, rest string) bool {
	fd, err := openNear(dir, rest)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return false
	}
	socket := "/proc/self/fd/" + strconv.Itoa(fd)
	cred, err := peerOf(socket, unix.SOCK_STREAM)
	if err == unix.EPROTOTYPE {
		cred, err = peerOf(socket, unix.SOCK_SEQPACKET)
	}
	if err != nil || cred.Uid != 0 || cred.Pid <= 0 {
		return false
	}
	process := filepath.Join(h.Proc, strconv.Itoa(int(cred.Pid)))
	return h.isNodes(process) && holdsListener(process, filepath.Base(rest))
}

// isNodes reports whether a process of uid 0 is root of the node. Such a process shares the node's
// user namespace. It also shares the pid namespace and the root directory, or has CAP_SYS_ADMIN,
// with which it can leave a container.
func (h Host) isNodes(process string) bool {
	if !h.sharesNamespace(process, "user") {
		return false
	}
	if h.sharesNamespace(process, "pid") && sameRoot(process, filepath.Join(h.Proc, "self")) {
		return true
	}
	status, err := ReadFile(filepath.Join(process, "status"), maxProc)
	if err != nil {
		return false
	}
	for line := range bytes.Lines(status) {
		if mask, is := bytes.CutPrefix(line, []byte("CapEff:")); is {
			capabilities, err := strconv.ParseUint(string(bytes.TrimSpace(mask)), 16, 64)
			return err == nil && capabilities&(1<<unix.CAP_SYS_ADMIN) != 0
		}
	}
	return false
}

// sharesNamespace reports whether a process is in the same namespace of a kind as the caller.
func (h Host) sharesNamespace(process, kind string) bool {
	var st unix.Stat_t
	own, err := h.namespace(kind)
	return err == nil && unix.Stat(filepath.Join(process, "ns", kind), &st) == nil && st.Ino == own
}

// sameRoot reports whether two processes have the same root directory. It does not query the server
// of a container's file system, which may be dead.
func sameRoot(a, b string) bool {
	var roots [2]unix.Statx_t
	for i, process := range []string{a, b} {
		if unix.Statx(unix.AT_FDCWD, process+"/root", unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT,
			unix.STATX_INO, &roots[i]) != nil {
			return false
		}
	}
	return roots[0].Ino == roots[1].Ino && roots[0].Dev_major == roots[1].Dev_major &&
		roots[0].Dev_minor == roots[1].Dev_minor
}

// HoldsListener reports whether a process holds a listening socket that was bound to this name. The
// kernel still names a process that called listen when it has ended, and its number may be
// another's by then (SO_PEERCRED): such a process does not hold it.
func (h Host) HoldsListener(pid int, name string) bool {
	return holdsListener(filepath.Join(h.Proc, strconv.Itoa(pid)), name)
}

// holdsListener reports whether a process has a listening socket open that was bound to this name,
// in any directory. The kernel lists the sockets of the process's network namespace.
func holdsListener(process, name string) bool {
	sockets, err := ReadFile(filepath.Join(process, "net/unix"), MaxSockets)
	if err != nil {
		return false
	}
	var held []string
	for line := range bytes.Lines(sockets) {
		words := strings.SplitN(strings.Join(strings.Fields(string(line)), " "), " ", 8)
		if len(words) == 8 && filepath.Base(words[7]) == name && accepts(words[3]) {
			held = append(held, "socket:["+words[6]+"]")
		}
	}
	fds, _ := Names(filepath.Join(process, "fd")) // unreadable: none is held
	return slices.ContainsFunc(fds, func(fd string) bool {
		target, err := os.Readlink(filepath.Join(process, "fd", fd))
		return err == nil && slices.Contains(held, target)
	})
}

// accepts reports whether flags of /proc/net/unix are those of a listening socket.
func accepts(flags string) bool {
	n, err := strconv.ParseUint(flags, 16, 64)
	return err == nil && n&acceptsConnections != 0
}

// MaxSockets is the largest size of the kernel's list of sockets that is read, in bytes. A busy
// node's list has some hundred kilobytes.
const MaxSockets = 32 << 20

// acceptsConnections is the flag of a socket that listens (__SO_ACCEPTCON,
// include/uapi/linux/net.h).
const acceptsConnections = 1 << 16

// ListeningSocket is a listening socket of /proc/net/unix.
type ListeningSocket struct{ Path, Inode string }

// Listening lists the listening sockets in /proc/net/unix whose path ends in this name, by the
// paths they were bound to. Each line has seven words before the path: number, references,
// protocol, flags, type, state, inode.
func Listening(sockets []byte, name string) (found []ListeningSocket) {
	end := []byte("/" + name + "\n")
	for line := range bytes.Lines(sockets) {
		i := bytes.IndexByte(line, '/')
		if i < 0 || !bytes.HasSuffix(line, end) {
			continue
		}
		words := strings.Fields(string(line[:i]))
		if len(words) != 7 {
			continue
		}
		if accepts(words[3]) {
			found = append(found,
				ListeningSocket{filepath.Clean(string(bytes.TrimSuffix(line[i:], []byte("\n")))), words[6]})
		}
	}
	return found
}
