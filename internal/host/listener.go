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

// Listener is the process that listens on the socket at a path, as the kernel knows it
// (SO_PEERCRED, unix(7): of who called listen), and which file that socket is, by device and inode.
// To be asked it connects, says nothing and goes. A link is not followed, and nobody who puts
// another socket there meanwhile has that one taken for the first.
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
	cred, err := peerOf(socket, kind)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// peerOf is what the kernel knows of the process that listens on a socket.
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
// below a directory. The path is walked as LookNear does. It is false for what a container or a
// user of the node can make, and where it cannot be told. The process need not be on the caller's
// network: the path leads to its socket all the same.
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

// isNodes reports whether a process of uid 0 is root of the node: it is in none of the namespaces
// and not in the root file system of a container, or it has a capability by which it could leave
// them.
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

// sharesNamespace reports whether a process is in the caller's namespace of a kind.
func (h Host) sharesNamespace(process, kind string) bool {
	var st unix.Stat_t
	own, err := h.namespace(kind)
	return err == nil && unix.Stat(filepath.Join(process, "ns", kind), &st) == nil && st.Ino == own
}

// sameRoot reports whether two processes have the same directory as their root. The server of a
// container's file system is not asked: it may be dead.
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

// holdsListener reports whether a process has a listening socket of this name open. The kernel
// names the one that called listen, and that may have ended since, and its pid be another's.
func holdsListener(process, name string) bool {
	sockets, err := ReadFile(filepath.Join(process, "net/unix"), MaxSockets)
	if err != nil {
		return false
	}
	var held []string
	for _, s := range Listening(sockets, name) {
		held = append(held, "socket:["+s.Inode+"]")
	}
	fds, _ := Names(filepath.Join(process, "fd")) // none that can be seen: none is held
	return slices.ContainsFunc(fds, func(fd string) bool {
		target, err := os.Readlink(filepath.Join(process, "fd", fd))
		return err == nil && slices.Contains(held, target)
	})
}

// MaxSockets bounds what is read of the kernel's list of sockets, in bytes. A busy node's has some
// hundred kilobytes.
const MaxSockets = 32 << 20

// acceptsConnections is the flag of a socket that listens (__SO_ACCEPTCON,
// include/uapi/linux/net.h).
const acceptsConnections = 1 << 16

// ListeningSocket is one of /proc/net/unix that listens.
type ListeningSocket struct{ Path, Inode string }

// Listening lists the sockets in /proc/net/unix that listen and whose path ends in this name, by
// the paths they were bound to. Each line has seven words before the path: number, references,
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
		if flags, err := strconv.ParseUint(words[3], 16, 64); err == nil && flags&acceptsConnections != 0 {
			found = append(found,
				ListeningSocket{filepath.Clean(string(bytes.TrimSuffix(line[i:], []byte("\n")))), words[6]})
		}
	}
	return found
}
