package host

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Descriptor is an open file of the calling process that can lead to what governs a GPU: anything
// but a pipe, a terminal or a socket without a name. Its Path is what the kernel reports: a path,
// or a name such as "anon_inode:[pidfd]". A socket has one only if it is open as a path (O_PATH).
type Descriptor struct {
	Number int
	ResolvedFile
	FileSystem   int64  // of a file or directory on no disk: the type of its file system, as in statfs(2)
	Socket, Peer string // of a unix socket: the paths of it and of its peer, if they have any
}

// plainMajors are the majors of character devices that nearly every process has as its standard
// input or output: memory devices and terminals.
var plainMajors = map[uint32]bool{1: true, 4: true, 5: true, 136: true, 137: true, 138: true, 139: true,
	140: true, 141: true, 142: true, 143: true}

// Descriptors lists the descriptors that the calling process passes on to a program that it
// executes, and that are lower than below. Those that Go's runtime has opened for itself, such as
// the files of a cgroup's CPU limit (since Go 1.25), are closed then. It leaves out pipes,
// terminals, /dev/null, and sockets without a name.
func Descriptors(below int) (list []Descriptor) {
	numbers := make([]int, 0, 3)
	if below <= 16 {
		for fd := range below {
			numbers = append(numbers, fd)
		}
	} else { // the limit may be any number
		names, _ := Names("/proc/self/fd")
		for _, name := range names {
			if fd, err := strconv.Atoi(name); err == nil && fd < below {
				numbers = append(numbers, fd)
			}
		}
	}
	for _, fd := range numbers {
		d := Descriptor{Number: fd}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		if d.stat(fd, "", unix.AT_EMPTY_PATH) == nil && d.leads() {
			list = append(list, d)
		}
	}
	return list
}

// leads reads what a descriptor leads to, and reports whether that can matter.
func (d *Descriptor) leads() bool {
	switch d.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		return !plainMajors[unix.Major(d.Rdev)]
	case unix.S_IFIFO, unix.S_IFLNK:
		return false
	case unix.S_IFSOCK:
		own, err := unix.Getsockname(d.Number)
		if err == unix.EBADF { // open as a path: /proc/self/fd leads to the socket there
			break
		}
		peer, _ := unix.Getpeername(d.Number)
		d.Socket, d.Peer = socketName(own), socketName(peer)
		return d.Socket+d.Peer != ""
	case unix.S_IFREG, unix.S_IFDIR:
		var st unix.Statfs_t
		if unix.Major(d.Dev) == 0 && unix.Fstatfs(d.Number, &st) == nil {
			d.FileSystem = int64(st.Type)
		}
	}
	d.Path, _ = os.Readlink("/proc/self/fd/" + strconv.Itoa(d.Number))
	return true
}

func socketName(address unix.Sockaddr) string {
	if a, is := address.(*unix.SockaddrUnix); is {
		return a.Name
	}
	return ""
}
