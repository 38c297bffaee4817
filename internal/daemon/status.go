package daemon

import (
	"fmt"
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
	watch   *watcher.Manager
	limits  *driverlimits.Manager

	mu      sync.Mutex
	picture grants.Status
	err     error
	until   time.Time // picture and err are not read again before
}

func (v *statusView) readNode() (grants.Status, error) {
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
func (v *statusView) pageContent() page.Content {
	s := v.metricsSnapshot()
	host, _ := os.Hostname()
	return page.Content{Host: host, Version: s.Version, Node: s.Node, Audited: s.Audited,
		Refusals: v.audit.Recent(), Alarms: alarms(s), Watch: s.Watch}
}

// maxAlarms is how many findings of the watch the page lists.
const maxAlarms = 20

// alarms are what an administrator should look at, in sentences.
func alarms(s metrics.Snapshot) []string {
	var all []string
	switch p := s.Node.Pause; {
	case s.Node.Mode == grant.Disabled && p.Until.IsZero():
		all = append(all, "gpuledger is disabled until `gpuledger enable`: containers start without grants")
	case s.Node.Mode == grant.Disabled:
		all = append(all,
			"gpuledger is disabled until "+p.Until.UTC().Format(time.RFC3339)+": containers start without grants")
	}
	if s.Err != nil {
		all = append(all, s.Err.Error())
	}
	if p := s.Node.Problem; p != nil {
		all = append(all, p.Message+"; "+p.Hint)
	}
	for _, d := range s.Node.Damaged {
		all = append(all, "the ledger's entry "+string(d.ID)+" is damaged; its GPUs take no new grants")
	}
	for i, f := range s.Watch.Findings {
		if i == maxAlarms {
			all = append(all, fmt.Sprintf("and %d more findings: the audit log has them",
				len(s.Watch.Findings)-i))
			break
		}
		all = append(all, f.Message)
	}
	for _, m := range s.Managers {
		if m.Error != "" {
			all = append(all, m.Name+": "+m.Error)
		}
	}
	return all
}
