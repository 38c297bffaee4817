// Package metrics tells Prometheus what the ledger says and how the daemon is.
package metrics

import (
	"time"

	"github.com/gpuledger/gpuledger/internal/auditlog"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// State is all that is told.
type Snapshot struct {
	Version  string
	Node     node.Picture
	Err      error // why the ledger or the configuration's pools cannot be read; Node has what can
	Audited  bool  // there is an audit log to count from
	Counts   auditlog.Counts
	Ledger   LedgerStatus
	Managers []ManagerStatus
	Watch    watch.Status
	Engines  []EngineStatus // that were configured with --as-default
}

// Engine is an engine whose default handler should be gpuledger.
type EngineStatus struct {
	Name string // as `gpuledger configure` takes it
	Ours bool   // it is
}

// Manager is how one of the daemon's managers is.
type ManagerStatus struct {
	Name           string
	Last           time.Time // when its last finished pass began
	Took           time.Duration
	Passes, Errors uint64
	Error          string // of the last pass; "" if there was none
}

// Ledger is what the last look at the whole ledger found.
type LedgerStatus struct {
	Checked  time.Time // zero: not yet
	Problems int       // that cannot be repaired
	Damaged  int       // of them entries that cannot be read
}
