package runtime

import (
	"os"

	"golang.org/x/sys/unix"
)

// restful is how late the wake-ups of Go's monitor may come, in nanoseconds: as late as it comes by
// itself where there is nothing to do.
const restful = "10000000"

// calm has the kernel put wake-ups of Go's monitor together (proc_pid_timerslack_ns(5)). That
// thread looks every 20 microseconds for goroutines to move to other threads, of which a create has
// one; fifty timers of a virtual machine are a seventh of what the wrapper takes (docs/adr/0036).
// Nothing depends on it: what the monitor does it does later.
//
// The real runtime, and the container after it, must have the timers that the engine gave us.
// Threads inherit them from the one that makes them, and the monitor makes some. So from here on to
// the exec this goroutine has to stay on a thread that was made before: it is on the process's
// first one, where all init functions run (package runtime, LockOSThread), and the wrapper is one,
// which TestTheWrapperIsAnInitFunction holds.
func calm() {
	if unix.Gettid() != os.Getpid() {
		return // it is no init function's
	}
	if monitor := monitorsThread(); monitor != "" {
		rest(monitor)
	}
}

// rest sets another thread's timers, and in no case ours.
func rest(thread string) {
	own, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return
	}
	fd, err := unix.Open("/proc/"+thread+"/timerslack_ns", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // without CAP_SYS_NICE, or before Linux 4.6
	}
	_, _ = unix.Write(fd, []byte(restful))
	_ = unix.Close(fd)
	if now, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); now != own {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(own), 0, 0, 0)
	}
}

// monitorsThread is the number of the first thread that the process has made, as /proc numbers
// threads: Go's runtime makes the monitor's before all others. The kernel lists threads in the
// order in which they came. "" where it cannot be told.
func monitorsThread() string {
	dir, err := unix.Open("/proc/self/task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(dir)
	var listing [512]byte // of a few threads
	n, err := unix.ReadDirent(dir, listing[:])
	if err != nil {
		return ""
	}
	if _, _, threads := unix.ParseDirent(listing[:n], 2, nil); len(threads) == 2 {
		return threads[1]
	}
	return ""
}
