package gpu

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// HeldError says that another process is taking the inventory and has not ended in time.
type HeldError struct {
	Path   string // of the lock's file
	Holder string // its pid, "" if it has not written it yet
	Wait   time.Duration
}

func (e *HeldError) Error() string {
	process := "another process"
	if e.Holder != "" {
		process = "process " + e.Holder
	}
	return fmt.Sprintf("cannot take the inventory: %s has been taking it for more than %s (it holds %s)",
		process, e.Wait, e.Path)
}

// lockPath is the path of the lock for the snapshot at path.
func lockPath(path string) string { return path + ".lock" }

// Lock makes this process the only one that takes the snapshot at path. It is held from before the
// scan until the snapshot is written, so that no earlier scan replaces a later one. It waits for
// another process, and returns a HeldError after that time. The kernel releases the lock when the
// process ends. Where no lock can be made, because the directory is missing or read-only, there is
// none: Write then makes the directory, or says why it cannot.
func Lock(path string, wait time.Duration) (unlock func(), err error) {
	f, err := os.OpenFile(lockPath(path), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return func() {}, nil
	}
	unlock = func() { _ = f.Close() }
	err = host.Flock(int(f.Fd()), wait)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		holder, _ := os.ReadFile(lockPath(path))
		unlock()
		return nil, &HeldError{lockPath(path), strings.TrimSpace(string(holder)), wait}
	case err != nil: // a file system without locks
		return unlock, nil
	}
	if err := f.Truncate(0); err == nil { // only for people to read
		_, _ = fmt.Fprintln(f, os.Getpid())
	}
	return unlock, nil
}
