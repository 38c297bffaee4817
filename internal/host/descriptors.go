package host

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Descriptor is an open file of the calling process that can lead to what governs a GPU: a
// character device, a file or directory by its name, or a socket by the paths that it has.
type Descriptor struct {
	Number  int
	Mode    uint32 // type and permissions
	Rdev    uint64
	Path    string   // of a file or directory, as the kernel names it now
	Sockets []string // of a unix socket: its own path and its peer's, where they have any
}

// plainMajors are those of character devices that nearly every process has as its standard input or
// output: memory, terminals.
var plainMajors = map[uint32]bool{1: true, 4: true, 5: true, 136: true, 137: true, 138: true, 139: true,
	140: true, 141: true, 142: true, 143: true}

// Descriptors are those of the calling process below a number, but for pipes and the like,
// terminals and /dev/null.
func Descriptors(below int) (list []Descriptor) {
	numbers := make([]int, 0, 3)
	if below <= 16 {
		for fd := range below {
			numbers = append(numbers, fd)
		}
	} else { // it may be any number
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
