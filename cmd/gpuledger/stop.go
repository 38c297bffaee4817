package main

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stop stops this process as Ctrl-Z stops one that does not handle the signal, and returns when the
// process goes on. The kernel does not stop a process that no shell would wake. Package signal does
// not restore SIGTSTP's default action once it was handled, so this function sets it in the kernel.
// It sends the signal to the calling thread: the process has stopped before the next line runs.
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
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGTSTP),
		uintptr(unsafe.Pointer(action)), uintptr(unsafe.Pointer(old)), maskSize, 0, 0)
	return errno == 0
}
