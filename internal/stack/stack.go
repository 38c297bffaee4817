// Package stack has the main goroutine's stack grow once, before anything runs on it. It begins
// with 2 KiB and is doubled whenever it is full: for each of six steps the runtime walks what is on
// it, by tables that nothing else of a short program reads, and copies it. With the stack as large
// as it comes to be a create takes 0.15 ms less (docs/adr/0036). Programs import it for that alone.
package stack

func init() { Grow() }

// size is more than half of what the stack of a create comes to be, 64 KiB: the runtime doubles
// until a frame fits.
const size = 56 << 10

// never is false, which the compiler does not know of a variable.
var never bool

// Grow makes room for a deep stack. Nothing is written to it: memory that nobody touches costs
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
