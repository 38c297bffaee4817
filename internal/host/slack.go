package host

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultTimerSlack is the kernel's default for how late it wakes programs (prctl(2),
// PR_SET_TIMERSLACK).
const DefaultTimerSlack = 50 * time.Microsecond

// SetTimerSlack sets how late the kernel may wake this program and the programs that it starts from
// now on. Go's runtime checks its threads every 20 microseconds while one of them runs. A program
// that works for some milliseconds a second wakes more often for that than for its work. Without
// CAP_SYS_NICE the kernel accepts the value for the calling thread only; systemd has
// TimerSlackNSec=.
func SetTimerSlack(late time.Duration) {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		_ = os.WriteFile("/proc/"+t.Name()+"/timerslack_ns", fmt.Append(nil, late.Nanoseconds()), 0)
	}
}

// SetThreadTimerSlack is SetTimerSlack for the calling thread and the program that it executes
// next.
func SetThreadTimerSlack(late time.Duration) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(late.Nanoseconds()), 0, 0, 0)
}
