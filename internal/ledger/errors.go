package ledger

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// ErrNotFound says that the ledger has no such entry.
var ErrNotFound = errors.New("the ledger has no such entry")

// notFoundError is ErrNotFound with the name of the entry. Most creates look for an entry that does
// not exist, so the sentence is made only when it is read.
type notFoundError struct{ format, name string }

// Error says what is not there.
func (e notFoundError) Error() string {
	return fmt.Sprintf("cannot find "+e.format, e.name) + ": " + ErrNotFound.Error()
}

// Unwrap is ErrNotFound.
func (e notFoundError) Unwrap() error { return ErrNotFound }

// DamagedError says that an entry exists and cannot be read. Its GPUs are closed until it is
// deleted.
type DamagedError struct{ grant.Damage }

// Error names the entry and what is wrong with it.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("cannot read grant %s: %s: %s", e.ID, e.Path, e.Err)
}

// LockError says that another process kept the lock for too long.
type LockError struct {
	Path string
	Wait time.Duration
}

// Error names the lock file: `fuser` and `lsof` show the process that holds it.
func (e *LockError) Error() string {
	return fmt.Sprintf("cannot lock the ledger within %s: %s is held by another process", e.Wait, e.Path)
}

var errReadOnly = errors.New("internal error: a write to the ledger outside of Update")
