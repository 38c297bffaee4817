//go:build failpoint

package failpoint

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Enabled reports whether the program was built with failpoints.
const Enabled = true

var (
	target, nth = chosen(os.Getenv(Variable))
	passed      atomic.Int64
)

// chosen parses NAME or NAME:N; without N the first pass kills.
func chosen(text string) (name string, n int64) {
	name, count, found := strings.Cut(text, ":")
	if !found {
		return name, 1
	}
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil || n < 1 {
		panic("cannot read " + Variable + "=" + text + ": want NAME or NAME:N")
	}
	return name, n
}

// Hit kills the process if this is the chosen mark. It uses SIGKILL, so that no deferred function
// cleans up.
func Hit(name string) {
	if !slices.Contains(Names, name) {
		panic("internal error: failpoint " + name + " is not in failpoint.Names")
	}
	if name != target || passed.Add(1) != nth {
		return
	}
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	time.Sleep(time.Hour) // the signal may reach another thread first
}
