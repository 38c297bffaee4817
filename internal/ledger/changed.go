package ledger

import (
	"os"
	"syscall"
	"time"
)

// Stamp tells one state of the ledger's directories from another. Containers that have ended change nothing in it.
type Stamp struct{ grants, bindings stamp }

type stamp struct {
	inode    uint64
	modified int64 // nanoseconds
}

// Last is when an entry or a binding was last made, replaced or removed, as the file system tells. Two changes can have one time: it goes by
// the clock's ticks, 10 ms at most.
func (s Stamp) Last() time.Time {
	last := max(s.grants.modified, s.bindings.modified)
	if last == 0 {
		return time.Time{}
	}
	return time.Unix(0, last)
}

// Stamp costs two system calls, so that whoever looks each second need not read everything.
func (l *Ledger) Stamp() Stamp { return Stamp{stampOf(l.grantsDir()), stampOf(l.bindingsDir())} }

func stampOf(dir string) (s stamp) {
	info, err := os.Stat(dir)
	if err != nil {
		return s
	}
	s.modified = info.ModTime().UnixNano()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = st.Ino
	}
	return s
}

// Changed is when an entry or a binding was last made, replaced or removed.
func (l *Ledger) Changed() time.Time { return l.Stamp().Last() }

// Records is how many bindings are written down, of containers that run or not.
func (tx *Tx) Records() int { return len(tx.keys("")) }
