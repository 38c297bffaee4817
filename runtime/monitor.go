package runtime

import (
	"os"

	"golang.org/x/sys/unix"
)

// monitorSlack is how late the kernel may wake Go's monitor, in nanoseconds. The idle monitor
// sleeps as long by itself.
const monitorSlack = "10000000"

// delayMonitor makes the kernel coalesce the wake-ups of Go's monitor thread
// (proc_pid_timerslack_ns(5)). The monitor wakes every 20 microseconds to move goroutines to other
// threads, and a create has one goroutine. Some fifty timer interrupts in a virtual machine are a
// seventh of the wrapper's time (docs/adr/0036). Nothing depends on the monitor: it does its work
// later.
// The real runtime and its container must have the timer slack that the engine set. A thread
// inherits it from the thread that creates it, and the monitor creates some. So until the exec this
// goroutine must stay on a thread that existed before: the process's first one. All init functions
// run there (package runtime, LockOSThread), and the wrapper is one. TestTheWrapperIsAnInitFunction
// checks that.
func delayMonitor() {
	if unix.Gettid() != os.Getpid() {
		return // not called from an init function
	}
	if monitor := monitorThread(); monitor != "" {
		setSlack(monitor)
	}
}

// setSlack sets another thread's timer slack, and never the calling thread's.
func setSlack(thread string) {
	own, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return
	}
	fd, err := unix.Open("/proc/"+thread+"/timerslack_ns", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return // no CAP_SYS_NICE, or Linux before 4.6
	}
	_, _ = unix.Write(fd, []byte(monitorSlack))
	_ = unix.Close(fd)
	if now, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); now != own {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(own), 0, 0, 0)
	}
}

// monitorThread returns the id of the second thread of the process: Go's runtime creates the
// monitor's thread before all others. The kernel lists threads in the order of their creation. "":
// unknown.
func monitorThread() string {
	dir, err := unix.Open("/proc/self/task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(dir)
	var listing [512]byte // enough for a few threads
	n, err := unix.ReadDirent(dir, listing[:])
	if err != nil {
		return ""
	}
	if _, _, threads := unix.ParseDirent(listing[:n], 2, nil); len(threads) == 2 {
		return threads[1]
	}
	return ""
}
