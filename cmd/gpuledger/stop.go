package main

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stop stops this process as Ctrl-Z does one that does not ask for the signal, and returns when it goes on. The kernel does not stop
// one that no shell would wake. Package signal gives SIGTSTP's default action back to nobody who once asked for the signal, so the kernel
// is told here. The signal is sent to the calling thread: the process has stopped before the next line runs.
func stop() {
	var byDefault, ours [4]uint64 // struct sigaction as the kernel has it: handler, flags, restorer, mask
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if setAction(&byDefault, &ours) {
		_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGTSTP)
		setAction(&ours, nil)
	}
}

func setAction(action, old *[4]uint64) bool {
	const maskSize = 8
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGTSTP), uintptr(unsafe.Pointer(action)), uintptr(unsafe.Pointer(old)), maskSize, 0, 0)
	return errno == 0
}
