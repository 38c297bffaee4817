package host

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
// or a user of the node can make, and where it is unknown which process listens. If only the list
// of sockets cannot be read, it is true: the kernel names a process of the node's root then. The
// process may be in another network namespace: the path leads to its socket all the same.
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
	if !h.isNodes(process) {
		return false
	}
	holds, err := holdsListener(process, filepath.Base(rest))
	return holds || err != nil
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
// another's by then (SO_PEERCRED): such a process does not hold it. An error says that it is
// unknown.
func (h Host) HoldsListener(pid int, name string) (bool, error) {
	return holdsListener(filepath.Join(h.Proc, strconv.Itoa(pid)), name)
}

// holdsListener reports whether a process has a listening socket open that was bound to this name,
// in any directory. A process that has ended has none. The kernel lists the sockets of the
// process's network namespace, which any program there can make many of. So only what the process
// itself has open is kept in memory.
//
// A program can forge a line (unixSocket) with the number of a socket that the process has open.
// Then that socket counts as one that listens. This helps only a program whose socket the kernel
// says this process to have called listen for, and at most its directory is refused to others.
func holdsListener(process, name string) (holds bool, err error) {
	open, err := openSockets(process)
	if err != nil || len(open) == 0 {
		return false, noneIfAbsent(err)
	}
	err = eachUnixSocket(filepath.Join(process, "net/unix"), name, func(s unixSocket) bool {
		holds = s.path[0] != '@' && open[string(s.inode)]
		return !holds
	})
	return holds, noneIfAbsent(err)
}

// openSockets returns the inodes of the sockets that a process has open.
func openSockets(process string) (map[string]bool, error) {
	fds, err := Names(filepath.Join(process, "fd"))
	if err != nil {
		return nil, err
	}
	open := map[string]bool{}
	for _, fd := range fds {
		target, err := os.Readlink(filepath.Join(process, "fd", fd))
		if err := noneIfAbsent(err); err != nil {
			return nil, err
		}
		if inode, is := strings.CutPrefix(target, "socket:["); is {
			open[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return open, nil
}

// noneIfAbsent returns no error if a process or its descriptor does not exist any more.
func noneIfAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// EachListening calls do with the path of each listening socket of a list (/proc/net/unix) that has
// this name, until do returns false. The paths are those to which the sockets were bound, beginning
// with "/". Abstract names and relative ones are left out.
//
// A path proves nothing: any program of the network namespace can list as many as it likes, and
// forge lines (unixSocket).
func EachListening(list, name string, do func(path string) bool) error {
	return eachUnixSocket(list, name,
		func(s unixSocket) bool { return s.path[0] != '/' || do(filepath.Clean(string(s.path))) })
}

// unixSocket is a listening socket by its line in /proc/net/unix. The kernel prints names as they
// are (unix_seq_show, net/unix/af_unix.c), also their newlines. So a name can contain whole lines
// that look like others' (forged lines). No name can hide or change another socket's line.
type unixSocket struct {
	inode []byte // in decimal
	path  []byte // not empty; an abstract name begins with "@"
}

// maxSockets bounds how much of a list of sockets is read, some million and a half sockets. It is a
// variable for its test.
var maxSockets = 256 << 20

// eachUnixSocket calls do with each listening socket of a list whose path ends in this name, until
// do returns false. It reads the list in pieces: any user can make it tens of megabytes long. From
// maxSockets on it stops with an error.
func eachUnixSocket(list, name string, do func(unixSocket) bool) error {
	return eachLine(list, maxSockets, func(line []byte) bool {
		if !bytes.HasSuffix(line, []byte(name)) { // nearly all lines
			return true
		}
		s, listens := listeningSocket(line)
		return !listens || filepath.Base(string(s.path)) != name || do(s)
	})
}

// listeningSocket reads a line: number, references, protocol, flags, type, state, inode and path.
// It is false for a socket that does not listen, and if a word is not as the kernel prints it.
func listeningSocket(line []byte) (s unixSocket, listens bool) {
	var words [7][]byte
	for i := range words {
		line = bytes.TrimLeft(line, " ") // the inode is padded
		word, rest, more := bytes.Cut(line, []byte(" "))
		if !more {
			return s, false
		}
		words[i], line = word, rest
	}
	for i, digits := range [...]int{8, 8, 8, 4, 2} {
		word := words[1+i]
		if _, err := strconv.ParseUint(string(word), 16, 32); err != nil || len(word) != digits {
			return s, false
		}
	}
	flags, _ := strconv.ParseUint(string(words[3]), 16, 32)
	_, err := strconv.ParseUint(string(words[6]), 10, 64)
	listens = err == nil && bytes.HasSuffix(words[0], []byte(":")) && flags&acceptsConnections != 0 &&
		len(line) > 0
	return unixSocket{inode: words[6], path: line}, listens
}

// acceptsConnections is the flag of a socket that listens (__SO_ACCEPTCON,
// include/uapi/linux/net.h).
const acceptsConnections = 1 << 16
