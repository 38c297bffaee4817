package daemon

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/ledgercache"
	"github.com/gpuledger/gpuledger/internal/daemon/schedule"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/metrics"
	"github.com/gpuledger/gpuledger/internal/node"
)

// How often the manager works, in intervals of the daemon. Nothing waits for it: a placement that
// needs the room of grants that are over removes them itself.
const (
	removalEvery = 5  // between two removals of dead bindings
	checkEvery   = 60 // between two checks of the whole ledger
	// For the time of so many checks a check that found nothing wrong holds: the checks in it do
	// not read the ledger again, unless one of its files has changed.
	soundChecks = 5
)

// ledgerManager is the manager of the ledger. It removes the bindings of containers that are gone
// and a pause that is over, and checks the ledger: a check removes the grants that are over, and
// repairs what it can.
type ledgerManager struct {
	node  func() *node.Node
	cache *ledgercache.Cache
	wait  func() time.Duration // the interval
	log   *logrus.Logger

	nextRemoval, nextCheck time.Time
	failure                error // of the last check
	sound                  soundLedger

	mu    sync.Mutex
	found metrics.LedgerStatus
}

// soundLedger is a check that found nothing wrong: of which node, the stamp of the files before it,
// and when it began, after that.
type soundLedger struct {
	node  *node.Node
	stamp ledgercache.Stamp
	began time.Time
}

func (r *ledgerManager) Name() string { return "reconcile" }
func (r *ledgerManager) Stop()        {}

// Ensure does what is due. The first call checks the ledger.
func (r *ledgerManager) Ensure(context.Context) error {
	began, worked := time.Now(), schedule.CPUTime()
	if began.Before(r.nextCheck) && began.Before(r.nextRemoval) {
		return r.failure
	}
	_, _ = r.node().Paused() // this removes a pause that is over
	switch {
	case !began.Before(r.nextCheck):
		r.failure = r.check(r.node(), began)
		r.nextCheck = schedule.Next(began, checkEvery*r.wait(), schedule.CPUTime()-worked)
		r.nextRemoval = schedule.Next(began, removalEvery*r.wait(), schedule.CPUTime()-worked)
	default:
		r.removeDeadBindings(r.node())
		r.nextRemoval = schedule.Next(began, removalEvery*r.wait(), schedule.CPUTime()-worked)
	}
	return r.failure
}

// removeDeadBindings removes the bindings of containers that are gone. If all containers of the
// ledger are known to run, it does nothing.
func (r *ledgerManager) removeDeadBindings(n *node.Node) {
	if r.cache.AllRun(n) {
		return
	}
	if gone := n.RemoveDeadBindings(); gone > 0 {
		r.log.WithField("bindings", gone).Info("containers are gone; their grants are free")
	}
}

// check checks the whole ledger, or only the files that containers can write to if the last check
// still holds. It logs each repair. It returns an error as long as something is wrong that it
// cannot repair.
func (r *ledgerManager) check(n *node.Node, now time.Time) error {
	if r.stillSound(n, now) {
		findings, err := grants.SettleLimits(n)
		r.logRepairs(findings)
		if err != nil || len(unrepaired(findings)) == 0 {
			return err
		}
	}
	r.sound = soundLedger{}
	// The stamp is from before the check: if the check changes a file, the next one reads the
	// ledger again. It began after the stamp was taken: Stamp.Before.
	before := soundLedger{n, ledgercache.StampOf(n), time.Now()}
	report, err := grants.Reconcile(n)
	if err != nil {
		return fmt.Errorf("cannot reconcile the ledger: %w", err)
	}
	wrong := unrepaired(report.Findings)
	r.mu.Lock()
	r.found = metrics.LedgerStatus{Checked: time.Now(), Problems: len(wrong), Damaged: len(report.Damaged)}
	r.mu.Unlock()
	r.logRepairs(report.Findings)
	if len(wrong) == 0 {
		r.sound = before
		return nil
	}
	return fmt.Errorf("the ledger is not sound: %s: %s (%d findings in all; `gpuledger check` lists them)",
		wrong[0].Subject, wrong[0].Problem, len(wrong))
}

func unrepaired(findings []ledger.Finding) []ledger.Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f ledger.Finding) bool { return f.Repaired })
}

func (r *ledgerManager) logRepairs(findings []ledger.Finding) {
	for _, f := range findings {
		if f.Repaired {
			r.log.WithFields(logrus.Fields{"subject": f.Subject, "problem": f.Problem}).Info("tidied")
		}
	}
}

// stillSound reports whether the last check still holds: it found nothing wrong and is not too old,
// and since then no file of the ledger has changed and no container has ended.
func (r *ledgerManager) stillSound(n *node.Node, now time.Time) bool {
	return r.sound.node == n && r.sound.stamp == ledgercache.StampOf(n) &&
		r.sound.stamp.Before(r.sound.began) && r.cache.AllRun(n) &&
		// half an interval less, so that it is over at the tick itself
		now.Sub(r.sound.began) < soundChecks*checkEvery*r.wait()-r.wait()/2
}

// Found is what the last check found.
func (r *ledgerManager) Found() metrics.LedgerStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.found
}
