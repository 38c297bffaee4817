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
	if err := before(Step{Kind: Reads, Path: path}); err != nil {
		return nil, err
	}
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
	// room for one more byte, as readRest wants it
	return readRest(fd, path, make([]byte, 0, st.Size+1), int(limit), int(st.Size))
}
