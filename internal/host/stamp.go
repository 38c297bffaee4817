package host

import (
	"time"

	"golang.org/x/sys/unix"
)

// Stamp identifies one state of a file or a directory without reading it; a directory changes when
// a name in it does. The zero value means that nothing is there.
type Stamp struct {
	device, inode uint64
	size          int64
	changed       int64 // st_ctim, in nanoseconds, which no program can set
}

// StampOf returns the stamp of what a path leads to.
func StampOf(path string) Stamp {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return Stamp{}
	}
	return Stamp{uint64(st.Dev), st.Ino, st.Size, st.Ctim.Nano()}
}

// Changed returns the time of the last change, by the clock of file systems.
func (s Stamp) Changed() time.Time {
	if s == (Stamp{}) {
		return time.Time{}
	}
	return time.Unix(0, s.changed)
}

// tick is longer than two changes can be apart that get the same time stamp. File systems use the
// time of the scheduler's tick, every 10 ms at most.
const tick = 20 * time.Millisecond

// Before reports whether the last change is more than a tick older than a read that began after the
// stamp was taken. Then that read has missed no change that left the stamp the same.
func (s Stamp) Before(read time.Time) bool { return read.Sub(s.Changed()) > tick }
