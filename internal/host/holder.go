package host

import (
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Flock takes the lock of an open file (flock(2)). If another process has it, Flock waits for that
// time, and returns EWOULDBLOCK then.
func Flock(fd int, wait time.Duration) error {
	for end := time.Now().Add(wait); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EWOULDBLOCK || time.Now().After(end) {
			return err
		}
	}
}

// Holder returns the process that holds a flock on a file into which it has written its pid, or 0.
// It reads /proc/locks, because trying the lock would delay a process that wants it at that moment.
// The pid distinguishes the file from one with the same inode on another file system. In another
// pid namespace than the holder's, Holder returns 0.
func (h Host) Holder(path string) int {
	const most = 4 << 20 // bytes
	var st unix.Stat_t
	text, err := ReadFile(path, most)
	if err != nil || unix.Stat(path, &st) != nil {
		return 0
	}
	pid := strings.TrimSpace(string(text))
	locks, _ := ReadFile(filepath.Join(h.Proc, "locks"), most)
	for line := range strings.Lines(string(locks)) {
		// 1: FLOCK  ADVISORY  WRITE 708 fe:00:397 0 EOF
		fields := strings.Fields(line)
		if len(fields) > 5 && fields[1] == "FLOCK" && fields[4] == pid &&
			strings.HasSuffix(fields[5], ":"+strconv.FormatUint(st.Ino, 10)) {
			found, _ := strconv.Atoi(pid)
			return found
		}
	}
	return 0
}
