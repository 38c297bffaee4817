package host

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// UsualSlack is how late the kernel wakes programs that have not said otherwise (prctl(2),
// PR_SET_TIMERSLACK).
const UsualSlack = 50 * time.Microsecond

// Slack lets the kernel wake this program, and those that it starts from now on, so much late. Go's
// runtime looks after its threads every 20 microseconds while one of them works; a program that
// works for some milliseconds a second then wakes up more often for that than for its work. Without
// CAP_SYS_NICE the kernel takes it of the calling thread alone; systemd has TimerSlackNSec=.
func Slack(late time.Duration) {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		_ = os.WriteFile("/proc/"+t.Name()+"/timerslack_ns", fmt.Append(nil, late.Nanoseconds()), 0)
	}
}

// SlackOfThread is Slack for the calling thread, and the program that takes its place.
func SlackOfThread(late time.Duration) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(late.Nanoseconds()), 0, 0, 0)
}
