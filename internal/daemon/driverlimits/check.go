package driverlimits

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/daemon/daemonlog"
	"github.com/gpuledger/gpuledger/internal/daemon/ledgercache"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// check removes limits that are over, compares the others with the ledger and the driver, and
// reports whether limits are set. An error in one part does not prevent the others.
func (l *Enforcer) check(ctx context.Context, n *node.Node, could bool) (limited bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.load(n); err != nil {
		return false, err
	}
	err = l.followLedger(n)
	gone, e := l.clear(ctx, n, func(limitedCgroup) bool { return true })
	if gone > 0 {
		log := l.log.WithField("cgroups", gone)
		log.Info("the driver's memory limits of containers that are gone are taken off")
	}
	err = errors.Join(err, e, l.repairDrifts(ctx, n, could))
	return len(l.known) > 0, err
}

// followLedger takes over changes of the ledger that were not requested here: of a `grant --update`
// that ended half-way, and of a container that the ledger says started without limits.
func (l *Enforcer) followLedger(n *node.Node) error {
	changed, now := n.Ledger.Stamp(), time.Now()
	lowers := slices.ContainsFunc(l.known, func(f limitedCgroup) bool { return f.Reduction.By.PID != 0 })
	if len(l.known) == 0 || !lowers && l.followed == changed && changed.Before(l.followedAt) &&
		now.Sub(l.followedAt) < ledgercache.MaxAge {
		return nil
	}
	var moved []grant.CgroupLimit
	known := slices.Clone(l.known)
	if err := n.Ledger.View(func(tx *ledger.Tx) error {
		for i, f := range known {
			if b, err := tx.Bindings.Of(f.RuntimeRoot, f.Container); err == nil && !b.Driven {
				known[i].released = true
			}
			// The containers of a grant that is over or damaged keep what they have.
			g, err := tx.Get(f.Grant)
			if err != nil {
				continue
			}
			if !f.Reduction.inProgress(n.Host) {
				known[i].Reduction = reduction{}
			}
			if want := f.Reduction.apply(n.Host, g.GPUs); !slices.Equal(f.GPUs, want) {
				known[i].GPUs = want
				moved = append(moved, known[i].limits(n.Host, true)...)
			}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("cannot hold the driver's limits against the ledger: %w", err)
	}
	if len(moved) > 0 {
		if err := l.save(n, known); err != nil {
			return err
		}
		l.pending.add(moved) // repairDrifts sets them
		l.log.WithField("limits", len(moved)).Info("the driver's memory limits follow the ledger")
	}
	l.known, l.followed, l.followedAt = known, changed, now
	return nil
}

// repairDrifts sets limits that are wrong, and reports those that another program has changed.
func (l *Enforcer) repairDrifts(ctx context.Context, n *node.Node, could bool) error {
	var asks, again []grant.CgroupLimit
	for _, f := range l.known {
		if !f.released {
			asks = append(asks, f.limits(n.Host, false)...)
		}
	}
	if len(asks) == 0 && (!could || l.answered) {
		l.reportDrifts(n, nil)
		return nil
	}
	// The first call may be about no limit: it loads the driver's library before a create needs it.
	answers, err := l.driver.Limit(ctx, n.Policy.Inventory, asks)
	if err != nil {
		return fmt.Errorf("cannot tell what the driver limits: %w", err)
	}
	l.answered = true
	var drifts []grant.Finding
	var t limitErrors
	for i, a := range answers {
		switch ask := asks[i]; {
		case a.Error != "":
			t.add(a.Cgroup, grant.Printable(a.Error))
		case roughlyEqual(a.Hard, ask.Hard):
			delete(l.pending, cgroupGPUOf(ask))
		default:
			if !l.pending[cgroupGPUOf(ask)] {
				drifts = append(drifts, driftOf(n, l.known, a, ask.Hard))
			}
			ask.Set = true
			again = append(again, ask)
		}
	}
	l.reportDrifts(n, drifts)
	return errors.Join(t.err(), l.setLimits(ctx, n, again).err())
}

// reportDrifts counts drifts, and logs them when they are new and when they are over, as the watch
// does with its findings. A program that changes a limit again and again does not fill the log.
func (l *Enforcer) reportDrifts(n *node.Node, drifts []grant.Finding) {
	l.driftCount.Add(uint64(len(drifts)))
	news := l.tracker.Update(&watch.Comparison{Taken: n.Host.Now(), Findings: drifts})
	stands := l.Findings()
	for _, f := range news.Begun {
		l.log.WithFields(daemonlog.FindingFields(f)).Warn(f.Message)
		n.Found("found", f, grant.ReportFinding, f.Message)
		stands = append(stands, f)
	}
	for _, f := range news.Ended {
		l.log.WithFields(daemonlog.FindingFields(f)).Info("over: " + f.Message)
		n.Found("over", f, "", f.Message)
		stands = slices.DeleteFunc(stands, func(s grant.Finding) bool { return s.Key() == f.Key() })
	}
	l.current.Store(&stands)
}

// Findings returns the drifts that are not over.
func (l *Enforcer) Findings() []grant.Finding {
	if stands := l.current.Load(); stands != nil {
		return slices.Clone(*stands)
	}
	return nil
}

// Drifts is how many limits another program has changed so far.
func (l *Enforcer) Drifts() uint64 { return l.driftCount.Load() }

// driftOf is the finding about a limit that another program has changed.
func driftOf(n *node.Node, known []limitedCgroup, a grant.CgroupLimit, want grant.Bytes) grant.Finding {
	f := grant.Finding{Kind: grant.LimitChanged, GPU: a.GPU, Index: -1, Bytes: a.Hard}
	limit := a.Hard.String()
	if a.Hard == grant.NoLimit {
		limit, f.Bytes = "none", 0
	}
	i := slices.IndexFunc(known, func(f limitedCgroup) bool { return f.dir(n.Host) == a.Cgroup })
	if i >= 0 {
		f.Grant, f.User.Container, f.User.Cgroup = known[i].Grant, known[i].Container, known[i].Cgroup
		for _, s := range known[i].GPUs {
			if s.UUID == a.GPU {
				f.Index = s.Index
			}
		}
	}
	f.Message = fmt.Sprintf("the driver's limit of container %q on GPU %d was %s and not %s: "+
		"another program "+
		"has changed it; it is set again", grant.Printable(f.User.Container), f.Index, limit, want)
	return f
}
