package daemon

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/metrics"
	"github.com/gpuledger/gpuledger/internal/node"
)

// How often, in intervals. Nobody waits for it: whoever needs the room of what is over finds it over, and sweeps it out
// himself.
const (
	tidyEvery      = 5
	reconcileEvery = 60
	soundFor       = 5 // of the latter: that long it is believed of a ledger that was sound that it is so, while nobody has changed it
)

// restAfter keeps the daemon below one percent of a core, and off the ledger's lock, however large the ledger is: after
// work of one second it rests a hundred.
const restAfter = 100

// reconcile is the manager of the ledger: it removes what is over, and looks whether the rest is sound.
type reconcile struct {
	node func() *node.Node
	book *book
	wait func() time.Duration // the interval
	log  *logrus.Logger

	tidy, whole time.Time // not before
	failure     error     // of the last whole pass
	sound       sound

	mu    sync.Mutex
	found metrics.LedgerStatus
}

// sound is a ledger as the last whole pass left it, if nothing is wrong with it.
type sound struct {
	node  *node.Node
	stamp stamp
	began time.Time
}

func (r *reconcile) Name() string { return "reconcile" }
func (r *reconcile) Stop()        {}

// Ensure does what is due, the whole ledger at the first time.
func (r *reconcile) Ensure(context.Context) error {
	began, worked := time.Now(), cpu()
	switch {
	case !began.Before(r.whole):
		r.failure = r.reconcile(r.node(), began)
		r.whole = due(began, reconcileEvery*r.wait(), cpu()-worked)
		r.tidy = due(began, tidyEvery*r.wait(), cpu()-worked)
	case !began.Before(r.tidy):
		r.tidyDead(r.node())
		r.tidy = due(began, tidyEvery*r.wait(), cpu()-worked)
	}
	return r.failure
}

// tidyDead removes the bindings of containers that are gone. Where all of the ledger's are known to run, it does not look.
func (r *reconcile) tidyDead(n *node.Node) {
	if r.book.quiet(n) {
		return
	}
	if gone := n.TidyDead(); gone > 0 {
		r.log.WithField("bindings", gone).Info("containers are gone; their grants are free")
	}
}

// due is when something is to be done again that began at a time and cost so much.
func due(began time.Time, every, cost time.Duration) time.Time {
	return began.Add(max(every, restAfter*cost))
}

// cpu is what this program has computed. On a machine that is short of it the time that passes says little about what work costs.
func cpu() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// reconcile makes a whole pass. What it repaired is said once; what it cannot repair is its error, for as long as it is so.
func (r *reconcile) reconcile(n *node.Node, now time.Time) error {
	if r.stillSound(n, now) {
		findings, err := n.SettleLimits()
		r.say(findings)
		if err != nil || len(unrepaired(findings)) == 0 {
			return err
		}
	}
	r.sound = sound{}
	is := sound{n, stampOf(n), now} // before it is looked at: what it changes itself is looked at again
	report, err := n.Reconcile()
	if err != nil {
		return fmt.Errorf("cannot reconcile the ledger: %w", err)
	}
	wrong := unrepaired(report.Findings)
	r.mu.Lock()
	r.found = metrics.LedgerStatus{Checked: time.Now(), Problems: len(wrong), Damaged: len(report.Damaged)}
	r.mu.Unlock()
	r.say(report.Findings)
	if len(wrong) == 0 {
		r.sound = is
		return nil
	}
	return fmt.Errorf("the ledger is not sound: %s: %s (%d findings in all; `gpuledger check` lists them)", wrong[0].Subject, wrong[0].Problem, len(wrong))
}

func unrepaired(findings []ledger.Finding) []ledger.Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f ledger.Finding) bool { return f.Repaired })
}

func (r *reconcile) say(findings []ledger.Finding) {
	for _, f := range findings {
		if f.Repaired {
			r.log.WithFields(logrus.Fields{"subject": f.Subject, "problem": f.Problem}).Info("tidied")
		}
	}
}

// stillSound reports whether nobody can have changed anything since the last whole pass, and no container has ended.
func (r *reconcile) stillSound(n *node.Node, now time.Time) bool {
	return r.sound.node == n && r.sound.stamp == stampOf(n) && r.sound.stamp.before(r.sound.began) && r.book.quiet(n) &&
		now.Sub(r.sound.began) < soundFor*reconcileEvery*r.wait()-r.wait()/2 // at the tick itself
}

// Found is what the last whole pass found.
func (r *reconcile) Found() metrics.LedgerStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.found
}
