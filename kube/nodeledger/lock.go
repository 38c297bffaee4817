package nodeledger

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Lock waits until no other process holds the lock of the same references. The kernel releases the
// lock of a killed process.
func (l Ledger) Lock() (unlock func(), err error) {
	if l.References == "" {
		return func() {}, nil
	}
	if err := os.MkdirAll(filepath.Dir(l.References), 0o750); err != nil {
		return nil, fmt.Errorf("cannot lock the references: %w", err)
	}
	f, err := os.OpenFile(l.References+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the references: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != unix.EINTR { // the Go runtime's own signals interrupt the call
			f.Close()
			return nil, fmt.Errorf("cannot lock the references: %w", err)
		}
	}
}
