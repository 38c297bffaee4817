// Package stack grows the main goroutine's stack once, before anything else runs on it. A stack
// begins with 2 KiB and is doubled whenever it is full. For each of six steps the runtime walks the
// stack, with tables that a short program does not read otherwise, and copies it. With the final
// size from the start, a create takes 0.15 ms less (docs/adr/0036). Programs import the package
// only for this effect.
package stack

func init() { Grow() }

// size is more than half of the final stack of a create, 64 KiB, in bytes: the runtime doubles the
// stack until a frame fits.
const size = 56 << 10

// never is false; the compiler cannot assume that of a variable.
var never bool

// Grow makes room for a deep stack. It writes nothing there: memory that is not touched costs
// nothing.
func Grow() {
	frame(never)
}

// frame has a large one: room is made for it when it is called, whatever it does.
//
//go:noinline
func frame(fill bool) byte {
	if !fill {
		return 0
	}
	var large [size]byte
	touch(&large)
	return large[size/2]
}

//go:noinline
func touch(large *[size]byte) {
	for i := range large {
		large[i] = byte(i)
	}
}
