package host

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// ReadRegular reads a regular file of at most limit bytes. It never waits and follows no link at
// the end of the path, whatever stands in the file's place: a container's create reads so.
func ReadRegular(path string, limit int64) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, errors.New("it is not a regular file")
	case st.Size > limit:
		return nil, fmt.Errorf("it has %d bytes, more than %d", st.Size, limit)
	}
	data := make([]byte, st.Size)
	n := 0
	for n < len(data) {
		m, err := read(fd, data[n:])
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if m == 0 { // it has become shorter
			break
		}
		n += m
	}
	return data[:n], nil
}
