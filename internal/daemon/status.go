package daemon

import (
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gpuledger/gpuledger/internal/daemon/driverlimits"
	"github.com/gpuledger/gpuledger/internal/daemon/ledgercache"
	"github.com/gpuledger/gpuledger/internal/daemon/watcher"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/metrics"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/page"
	"github.com/gpuledger/gpuledger/internal/version"
)

// statusView is what metrics and the page show. The node is read once for a second, and for ten
// times as long as reading it took, however many clients ask.
type statusView struct {
	node    func() *node.Node
	cache   *ledgercache.Cache
	loop    *Loop
	audit   *auditManager
	ledger  *ledgerManager
	engines *engineManager
	watch   *watcher.Watcher
	limits  *driverlimits.Enforcer

	mu      sync.Mutex
	picture grants.NodeStatus
	err     error
	until   time.Time // picture and err are not read again before
}

func (v *statusView) readNode() (grants.NodeStatus, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if began := time.Now(); !began.Before(v.until) {
		n := v.node()
		overview, err := v.cache.Current(n)
		v.picture, v.err = grants.StatusOf(n, overview, err)
		v.until = time.Now().Add(max(time.Second, 10*time.Since(began)))
	}
	return v.picture, v.err
}

// metricsSnapshot is what Prometheus gets.
func (v *statusView) metricsSnapshot() metrics.Snapshot {
	picture, err := v.readNode()
	watched := v.watch.Status()
	watched.Events = maps.Clone(watched.Events)
	if watched.Events == nil {
		watched.Events = map[grant.FindingKind]uint64{}
	}
	watched.Events[grant.LimitChanged] = v.limits.Drifts()
	engines, changed, begun := v.engines.State()
	watched.Events[grant.HandlerChanged] = begun
	watched.Findings = slices.Concat(changed, watched.Findings)
	return metrics.Snapshot{Engines: engines, Version: version.Version, Node: picture, Err: err,
		Audited: v.audit.Path() != "", Counts: v.audit.Counts(),
		Ledger: v.ledger.Found(), Managers: v.loop.Passes(), Watch: watched}
}

// pageContent is what the page shows.
func (v *statusView) pageContent() page.Data {
	s := v.metricsSnapshot()
	host, _ := os.Hostname()
	return page.Data{Host: host, Version: s.Version, Node: s.Node, Audited: s.Audited,
		Refusals: v.audit.Recent(), Alarms: alarms(s), Watch: s.Watch}
}
