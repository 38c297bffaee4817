package ledger

import (
	"time"

	"github.com/gpuledger/gpuledger/internal/host"
)

// Stamp tells one state of the ledger's files from another. It does not change when a container
// ends.
type Stamp struct{ grants, bindings host.Stamp }

// Stamp costs two system calls, so a program that looks each second need not read everything.
func (l *Ledger) Stamp() Stamp {
	return Stamp{host.StampOf(string(l.files.grants)), host.StampOf(l.files.bindings.records)}
}

// Before reports whether a read has missed no change that left the stamp the same, as host.Stamp
// does.
func (s Stamp) Before(read time.Time) bool { return s.grants.Before(read) && s.bindings.Before(read) }
