package ledger

import (
	"time"

	"github.com/gpuledger/gpuledger/internal/host"
)

// Stamp tells one state of the ledger's files from another. Containers that have ended change
// nothing in it.
type Stamp struct{ grants, bindings host.Stamp }

// Stamp costs two system calls, so that a program that looks each second need not read everything.
func (l *Ledger) Stamp() Stamp {
	return Stamp{host.StampOf(l.grantsDir()), host.StampOf(l.bindingsDir())}
}

// Before reports whether the ledger was as it is now for long enough at a time, as host.Stamp does.
func (s Stamp) Before(read time.Time) bool { return s.grants.Before(read) && s.bindings.Before(read) }

// Records is how many bindings are written down, of containers that run or not.
func (tx *Tx) Records() int { return len(tx.keys("")) }
