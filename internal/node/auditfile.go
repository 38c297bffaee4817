package node

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// appendAudit adds a line to the audit log, and rotates the log where the line would make it too
// large. Many short processes do so at once, and none waits for another: a line is one write at the
// file's end, and the process that gets the lock rotates. It never fails: what cannot be written
// harms no container.
func appendAudit(a grant.Audit, line []byte) {
	f := openAudit(a.File)
	if f < 0 {
		return
	}
	defer func() { _ = unix.Close(f) }()
	size := sizeOf(f)
	if limit := int64(a.MaxSize); limit > 0 && size > 0 && size+int64(len(line)) > limit {
		if next := rotated(f, a); next >= 0 {
			_ = unix.Close(f)
			f = next
		} else if size > limit*int64(a.Keep+1) {
			return // no process rotates it, so it ends at the size of all files together
		}
	}
	if n, _ := unix.Write(f, line); 0 < n && n < len(line) {
		takeBack(f, int64(n))
	}
}

// takeBack removes the part of a line that a full disk left room for, if nothing has followed it.
func takeBack(f int, n int64) {
	end, err := unix.Seek(f, 0, unix.SEEK_CUR)
	if err == nil && end == sizeOf(f) {
		_ = unix.Ftruncate(f, end-n)
	}
}

// openAudit opens the log, or gives -1. It waits for nothing and follows no link, whatever stands
// in the file's place: a FIFO would hold containers up, and by a link a user that can write into
// the directory would choose what root writes to.
func openAudit(path string) int {
	const flags = unix.O_WRONLY | unix.O_APPEND | unix.O_CREAT | unix.O_CLOEXEC |
		unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	f, err := unix.Open(path, flags, 0o640)
	if err == unix.ENOENT && os.MkdirAll(filepath.Dir(path), 0o750) == nil {
		f, err = unix.Open(path, flags, 0o640)
	}
	if err != nil {
		return -1
	}
	var st unix.Stat_t
	if unix.Fstat(f, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = unix.Close(f)
		return -1
	}
	return f
}

func sizeOf(f int) int64 {
	var st unix.Stat_t
	if unix.Fstat(f, &st) != nil {
		return 0
	}
	return st.Size
}

// rotated gives the file that follows f, or -1 where f is to be written to as it is. The lock is
// the file's own and is tried, never waited for: another process that has it is rotating at this
// moment, and a line more in the old file is no harm. Whoever gets it late finds another file at
// the path and leaves that alone.
func rotated(f int, a grant.Audit) int {
	if unix.Flock(f, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return -1
	}
	if isAt(f, a.File) && !shift(a) {
		_ = unix.Flock(f, unix.LOCK_UN)
		return -1
	}
	return openAudit(a.File)
}

// isAt reports whether the open file is still the one at the path.
func isAt(f int, path string) bool {
	var open, there unix.Stat_t
	return unix.Fstat(f, &open) == nil && unix.Lstat(path, &there) == nil && open.Dev == there.Dev &&
		open.Ino == there.Ino
}

// shift renames FILE to FILE.1, FILE.1 to FILE.2 and so on, the oldest first. A crash in between
// leaves a gap in the numbers, which costs the oldest file at most.
func shift(a grant.Audit) bool {
	old := func(i int) string { return a.File + "." + strconv.Itoa(i) }
	last := 1 // the first number that is free, or the last that there is
	for last < a.Keep && exists(old(last)) {
		last++
	}
	for i := last - 1; i >= 1; i-- {
		_ = os.Rename(old(i), old(i+1))
	}
	return os.Rename(a.File, old(1)) == nil
}

func exists(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil
}
