package stack

import (
	"testing"
	"unsafe"
)

// deep needs some 40 KiB of stack.
//
//go:noinline
func deep(n int) int {
	var room [1 << 10]byte
	room[n%len(room)] = 1
	if n == 0 {
		return int(room[0])
	}
	return deep(n-1) + int(room[n%len(room)])
}

// moved reports whether a deep call moves a goroutine's stack, so that it had to grow.
func moved(first func()) bool {
	answer := make(chan bool)
	go func() {
		first()
		var here byte
		before := uintptr(unsafe.Pointer(&here))
		deep(40)
		answer <- before != uintptr(unsafe.Pointer(&here))
	}()
	return <-answer
}

func TestAStackThatHasGrownStaysWhereItIs(t *testing.T) {
	if !moved(func() {}) {
		t.Error("a deep call has not moved a new goroutine's stack: this test shows nothing")
	}
	if moved(Grow) {
		t.Error("a deep call has moved the stack after Grow")
	}
}
