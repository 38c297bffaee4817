package host

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Descriptor is an open file of the calling process that can lead to what governs a GPU. It is a
// character device, a file or directory with its path, or a socket with its addresses.
type Descriptor struct {
	Number  int
	Mode    uint32 // type and permissions
	Rdev    uint64
	Path    string   // of a file or directory: its current path as the kernel reports it
	Sockets []string // of a unix socket: the paths of it and of its peer, if they have any
}

// plainMajors are the majors of character devices that nearly every process has as its standard
// input or output: memory devices and terminals.
var plainMajors = map[uint32]bool{1: true, 4: true, 5: true, 136: true, 137: true, 138: true, 139: true,
	140: true, 141: true, 142: true, 143: true}

// Descriptors lists the descriptors of the calling process that are lower than below. It leaves out
// pipes and the like, terminals and /dev/null.
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
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil {
			continue
		}
		d := Descriptor{Number: fd, Mode: st.Mode, Rdev: st.Rdev}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFCHR:
			if plainMajors[unix.Major(st.Rdev)] {
				continue
			}
		case unix.S_IFDIR, unix.S_IFREG:
			d.Path, _ = os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		case unix.S_IFSOCK:
			own, _ := unix.Getsockname(fd)
			peer, _ := unix.Getpeername(fd)
			for _, address := range []unix.Sockaddr{own, peer} {
				if a, is := address.(*unix.SockaddrUnix); is && a.Name != "" {
					d.Sockets = append(d.Sockets, a.Name)
				}
			}
			if d.Sockets == nil {
				continue
			}
		default:
			continue
		}
		list = append(list, d)
	}
	return list
}
