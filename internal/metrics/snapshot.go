// Package metrics reports the state of the ledger and of the daemon to Prometheus.
package metrics

import (
	"time"

	"github.com/gpuledger/gpuledger/internal/auditlog"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// Snapshot holds all that is reported.
type Snapshot struct {
	Version  string
	Node     grants.NodeStatus
	Err      error // why the ledger or the configuration's pools cannot be read; Node has what can
	Audited  bool  // there is an audit log to count from
	Counts   auditlog.Counts
	Ledger   LedgerStatus
	Managers []ManagerStatus
	Watch    watch.Status
	Engines  []EngineStatus // that were configured with --as-default
}

// EngineStatus says whether the default handler of an engine is gpuledger.
type EngineStatus struct {
	Name string // as `gpuledger configure` takes it
	Ours bool   // it is
}

// ManagerStatus is how the passes of one of the daemon's managers went.
type ManagerStatus struct {
	Name           string
	Last           time.Time // when its last finished pass began
	Took           time.Duration
	Passes, Errors uint64
	Error          string // of the last pass; "" if there was none
}

// LedgerStatus is what the last check of the whole ledger found.
type LedgerStatus struct {
	Checked  time.Time // zero: not yet
	Problems int       // that cannot be repaired
	Damaged  int       // of them entries that cannot be read
}
