package host

import (
	"time"

	"golang.org/x/sys/unix"
)

// Stamp tells one state of a file or a directory from another, without reading it: a directory
// changes when a name in it does. The zero value is of what is not there.
type Stamp struct {
	device, inode uint64
	size          int64
	changed       int64 // st_ctim, in nanoseconds; no program can set it
}

// StampOf is that of what a path leads to.
func StampOf(path string) Stamp {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return Stamp{}
	}
	return Stamp{uint64(st.Dev), st.Ino, st.Size, st.Ctim.Nano()}
}

// Changed is when, by the clock of file systems.
func (s Stamp) Changed() time.Time {
	if s == (Stamp{}) {
		return time.Time{}
	}
	return time.Unix(0, s.changed)
}

// tick is more than two changes can be apart that the clock of file systems puts at one time: it
// goes by the scheduler's, every 10 ms at most.
const tick = 20 * time.Millisecond

// Before reports whether the file was as it is now for long enough at a time, so that whoever read
// it then after having taken the same stamp has missed no change that could have left it the same.
func (s Stamp) Before(read time.Time) bool { return read.Sub(s.Changed()) > tick }
