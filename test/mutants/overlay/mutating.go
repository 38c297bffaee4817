// Package mutating switches one mutant on in a program that has all of them. It takes a place in
// the module only while test/mutants runs, by the go command's -overlay.
package mutating

import (
	"os"
	"strconv"
	"syscall"
)

// active is the mutant of this process; 0 is none.
var active = number("MUTANT")

// reached has a byte for each mutant, in a file that is shared with test/mutants; nil where it does
// not ask.
var reached = shared(os.Getenv("MUTANTS_REACHED"))

func number(variable string) int {
	n, _ := strconv.Atoi(os.Getenv(variable))
	return n
}

func shared(path string) []byte {
	if path == "" {
		return nil
	}
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	var stat syscall.Stat_t
	if err := syscall.Fstat(fd, &stat); err != nil {
		panic(err)
	}
	data, err := syscall.Mmap(fd, 0, int(stat.Size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	return data
}

func on(id int) bool {
	if reached != nil {
		reached[id] = 1
	}
	return active == id
}

// Bool is a condition: true in mutant whenTrue, false in mutant whenFalse. 0 is no mutant.
func Bool(whenTrue, whenFalse int, condition bool) bool {
	switch {
	case whenTrue != 0 && on(whenTrue):
		return true
	case whenFalse != 0 && on(whenFalse):
		return false
	}
	return condition
}

// Other is a comparison, or in the mutant another one.
func Other(id int, comparison, other func() bool) bool {
	if on(id) {
		return other()
	}
	return comparison()
}

// Zero is a function's result, or in the mutant the zero value.
func Zero[T any](id int, result T) T {
	if on(id) {
		var zero T
		return zero
	}
	return result
}
