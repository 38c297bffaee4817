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

// foreign is more than the clock of another machine is ahead of this one's, whose file system may
// be mounted here.
const foreign = time.Minute

// Before reports whether a read has missed no change that left the stamp the same. The read began
// after the stamp was taken. The zero time is before every change.
//
// If the last change is more than a tick older than the read, the next one is in another tick.
//
// If it is newer than the read, the clock was set back between the two. The next change then has a
// time of the clock as it is now, and so has the rest of a write that was under way: the kernel
// compares no times, it sets the new one. The stamp could be the same only when the clock, hours
// later, shows the very same nanosecond at a change. The clock of another machine's file system may
// be ahead without having been set back, and there the next change can be in the same tick. So a
// change that is newer by less than foreign does not count: a clock catches up on that soon.
func (s Stamp) Before(read time.Time) bool {
	since := read.Sub(s.Changed())
	return since > tick || since < -foreign && !read.IsZero()
}
