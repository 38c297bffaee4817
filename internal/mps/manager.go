// Package mps manages NVIDIA's Multi-Process Service for grants in mode mps: one control daemon for
// each set of GPUs with such grants, from the first grant to the last.
//
// A daemon outlives gpuledgerd. It has a directory below the run directory, where its process is
// recorded. The next gpuledgerd finds it there and leaves it as it is, because to restart it would
// kill every client. Its state.json says what gpuledgerd found. A container whose grant needs the
// daemon starts only if that file says that its limits are set and a server answers.
package mps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/mpsstate"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Manager is gpuledgerd's manager of MPS daemons.
type Manager struct {
	Node   func() *node.Node
	Ledger func(*node.Node) (grants.Overview, error) // reads the ledger, or returns the cached one
	Log    *logrus.Logger
	System System // nil: this machine

	daemons       map[string]*daemon // by name
	readAt        time.Time          // when the ledger was last read
	readTook      time.Duration      // how long that took
	grantsChanged time.Time          // the time of its last change
	failure       error              // the error of the last pass
}

func (m *Manager) now() time.Time { return systemOr(m.System).Now() }

// sorted are the daemons in the order of their names.
func (m *Manager) sorted() []*daemon {
	return slices.SortedFunc(maps.Values(m.daemons),
		func(a, b *daemon) int { return cmp.Compare(a.name, b.name) })
}

// Name is the manager's name in logs.
func (m *Manager) Name() string { return "mps" }

// Stop leaves the daemons as they are.
func (m *Manager) Stop() {}

// How long the ledger is not read again, as multiples of what reading it takes: that keeps reading
// a large ledger below one percent of a core. In an unchanged ledger, only containers and grants
// that have ended are news. A changed one is read again soon, and an unchanged one is read rarely
// if there is no daemon to end. No rest is longer than that: a pass takes for hours if this process
// or the machine is stopped meanwhile, and no grant may wait a hundred times as long.
const (
	restAfter, restAfterChange = 100, 4
	restIdle                   = 30 * time.Second
)

// clockTicks is longer than a tick of the file system's clock (10 ms at most): two changes within a
// tick may have the same time.
const clockTicks = 20 * time.Millisecond

// Ensure has a daemon run for every set of GPUs with a grant in mode mps, with the limits that the
// ledger says, and no others. Every pass first looks for daemons that have ended, because the rest
// waits for answers and may be postponed.
func (m *Manager) Ensure(ctx context.Context) error {
	began, died := m.now(), false
	for _, d := range m.sorted() {
		died = d.detectEnd() || died
		if err := shortenLogs(d.dir); err != nil {
			m.Log.WithError(err).Debug("a log stays as long as it is")
		}
	}
	rest, changed := restAfter*m.readTook, m.lastChange()
	switch {
	case !changed.Equal(m.grantsChanged):
		rest = restAfterChange * m.readTook
	// none is needed, and a new need changes a grant
	case len(m.daemons) == 0 && m.failure == nil && m.readAt.Sub(m.grantsChanged) > clockTicks:
		rest = restIdle
	}
	if began.Before(m.readAt.Add(min(rest, restIdle))) && !died {
		return m.failure
	}
	o, err := m.Ledger(m.Node())
	m.readAt, m.readTook, m.grantsChanged = began, m.now().Sub(began), changed
	if err == nil {
		err = m.ensure(ctx, o)
	}
	m.failure = err
	return err
}

// lastChange is when a grant was last entered, changed or removed, or a create has last asked for a
// daemon. Each is a file that is replaced by rename.
func (m *Manager) lastChange() time.Time {
	p := m.Node().Policy
	grants := host.StampOf(filepath.Join(p.StateDir, "grants")).Changed()
	if asked := host.StampOf(mpsstate.WantedDir(p.RunDir)).Changed(); asked.After(grants) {
		return asked
	}
	return grants
}

// ensure observes the daemons, plans what to do, and does it.
func (m *Manager) ensure(ctx context.Context, o grants.Overview) error {
	wanted := wants(slices.Concat(o.Grants, possible(mpsstate.Wanted(m.Node().Host, m.Node().Policy.RunDir),
		o.Grants)))
	if err := m.findDaemons(m.Node(), wanted); err != nil {
		return err
	}
	var all []facts
	for _, d := range m.sorted() {
		d.detectEnd() // also of daemons from before this gpuledgerd was started
		all = append(all, d.facts())
	}
	return m.apply(ctx, plan(all, wanted, len(o.Damaged) > 0, m.now()), wanted)
}

// apply does the steps of a plan. It asks all daemons at the same time: one that does not answer,
// which any of its clients can cause, must not delay the others. Then it starts daemons. Those
// before that are gone by then, with their directories.
func (m *Manager) apply(ctx context.Context, steps []step, wanted map[string]want) error {
	errs := make([]error, len(steps))
	var asked sync.WaitGroup
	for i, s := range steps {
		d := m.daemons[s.name]
		if s.action != keep {
			d.users = wanted[s.name].containers
		}
		switch s.action {
		case start: // below
		case remove:
			host.Go(&asked, func() { errs[i] = d.remove() })
		default:
			host.Go(&asked, func() { errs[i] = d.apply(ctx, s.action, wanted[s.name]) })
		}
	}
	asked.Wait()
	m.startAll(steps, wanted, errs)
	for i, s := range steps {
		errs[i] = errors.Join(errs[i], m.daemons[s.name].reportLost())
	}
	return errors.Join(errs...)
}

// startAll does the starts of a plan at the same time: a launcher that hangs must not delay the
// others. A start waits for earlier ones with one of its GPUs.
func (m *Manager) startAll(steps []step, wanted map[string]want, errs []error) {
	var all sync.WaitGroup
	ended := map[string]chan struct{}{}
	for i, s := range steps {
		if s.action != start {
			continue
		}
		var earlier []chan struct{}
		for _, name := range s.after {
			if end, starts := ended[name]; starts {
				earlier = append(earlier, end)
			}
		}
		end := make(chan struct{})
		ended[s.name] = end
		host.Go(&all, func() {
			defer close(end)
			for _, end := range earlier {
				<-end
			}
			errs[i] = m.start(m.daemons[s.name], wanted[s.name], s.after)
		})
	}
	all.Wait()
}

// start starts a daemon, unless another one still has one of its GPUs, or may get it: systemd can
// start a launcher long after it was asked to.
func (m *Manager) start(d *daemon, w want, after []string) error {
	for _, name := range after {
		if o := m.daemons[name]; o.runs() || o.launching {
			return d.startFailed(w, fmt.Errorf("the daemon of %v is not gone yet", o.state.GPUs))
		}
	}
	return d.start(w)
}

// findDaemons lists the daemons that are wanted or have a directory.
func (m *Manager) findDaemons(n *node.Node, wanted map[string]want) error {
	names := map[string]bool{}
	entries, err := os.ReadDir(grant.MPSDir(n.Policy.RunDir, ""))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		names[e.Name()] = true
	}
	for name := range wanted {
		names[name] = true
	}
	found := map[string]*daemon{}
	for name := range names {
		dir := grant.MPSDir(n.Policy.RunDir, name)
		d := m.daemons[name]
		if d == nil || d.dir != dir {
			d = &daemon{name: name, dir: dir}
		}
		d.node, d.log, d.system = n, m.Log, m.System
		found[name] = d
	}
	m.daemons = found
	return nil
}
