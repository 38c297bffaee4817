package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/configure"
	"github.com/gpuledger/gpuledger/internal/daemon/schedule"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/metrics"
	"github.com/gpuledger/gpuledger/internal/node"
)

// How often the engines' files are read: in intervals, and at most. A change is reported when it is
// seen twice, because a program may not write such a file at once; so it is reported within a
// minute.
const (
	defaultsEvery = 20
	defaultsMost  = 20 * time.Second
)

// engineManager is the manager that checks whether engines that were configured with --as-default
// still have gpuledger as their default handler. It only reports: other programs write these files
// too, and the administrator decides.
type engineManager struct {
	node func() *node.Node
	wait func() time.Duration // the interval
	log  *logrus.Logger
	root string // "": this machine's

	nextPass time.Time             // no pass before
	failure  error                 // of the last pass
	seen     map[grant.Engine]bool // changed, in the last pass

	mu       sync.Mutex
	engines  []metrics.EngineStatus
	findings []grant.Finding // that stand
	events   uint64
}

func (d *engineManager) Name() string { return "engines" }
func (d *engineManager) Stop()        {}

func (d *engineManager) Ensure(context.Context) error {
	began, worked := time.Now(), schedule.CPUTime()
	if began.Before(d.nextPass) {
		return d.failure
	}
	d.failure = d.look(d.node())
	d.nextPass = schedule.Next(began, min(defaultsEvery*d.wait(), defaultsMost), schedule.CPUTime()-worked)
	return d.failure
}

// look reads the engines' files. Findings about an engine stand while its files cannot be read.
func (d *engineManager) look(n *node.Node) error {
	all, err := configure.Defaults(cmp.Or(d.root, "/"), n.Policy.StateDir)
	if err != nil {
		return fmt.Errorf("cannot tell which handlers engines have by default: %w", err)
	}
	var failed []error
	var engines []metrics.EngineStatus
	var changed []grant.Finding
	seen := map[grant.Engine]bool{}
	for _, e := range all {
		f, stands := findingOf(d.findings, e.Engine)
		switch {
		case e.Err != nil:
			failed = append(failed, fmt.Errorf("cannot tell which handler %s has by default: %w", e.Engine,
				e.Err))
		case e.Ours:
			stands = false
		case stands:
			f.Message = message(e)
		case d.seen[e.Engine]:
			f, stands = d.addFinding(n, e), true
		default:
			seen[e.Engine] = true
		}
		if stands {
			changed = append(changed, f)
		}
		if stands || e.Err == nil {
			engines = append(engines, metrics.EngineStatus{Name: e.Name, Ours: !stands})
		}
	}
	for _, f := range d.findings {
		if _, stands := findingOf(changed, f.User.Engine); !stands {
			n.Found("over", f, "", f.Message)
			d.log.WithFields(logrus.Fields{"finding": f.Kind, "engine": f.User.Engine}).
				Info("over: " + f.Message)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.seen, d.engines, d.findings = seen, engines, changed
	return errors.Join(failed...)
}

// findingOf is the finding about an engine, if there is one.
func findingOf(changed []grant.Finding, engine grant.Engine) (grant.Finding, bool) {
	i := slices.IndexFunc(changed, func(f grant.Finding) bool { return f.User.Engine == engine })
	if i < 0 {
		return grant.Finding{}, false
	}
	return changed[i], true
}

func message(e configure.Default) string { return e.Problem() + "; " + e.Hint() }

// addFinding reports a new change.
func (d *engineManager) addFinding(n *node.Node, e configure.Default) grant.Finding {
	f := grant.Finding{Kind: grant.HandlerChanged, Index: -1, Since: n.Host.Now(), Message: message(e)}
	f.User.Engine = e.Engine
	n.Found("found", f, grant.ReportFinding, f.Message)
	d.log.WithFields(logrus.Fields{"finding": f.Kind, "engine": e.Engine}).Warn(f.Message)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events++
	return f
}

// State returns every engine that was configured with --as-default, the findings that stand, and
// how often a change was found.
func (d *engineManager) State() ([]metrics.EngineStatus, []grant.Finding, uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.engines, d.findings, d.events
}
