package sim

import (
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// finish is the end of a life, without faults: what fits is admitted, and nothing is left when all
// containers are gone.
func (l *life) finish() {
	l.rates, l.calm = rates{}, true
	l.drain()
	l.sick, l.divisions = make([]bool, l.gpus), make([]division, l.gpus)
	must(l.scan(l.eyes))
	err := l.one("watch", func(n *node.Node) error { return n.Ledger.SetFound(ledger.Found{}) })
	if err != nil {
		l.fail("what is used cannot be recorded: %v", err)
	}
	l.check()
	l.settleRecords()
	l.settleUsers()
	l.settleMPS()
	for _, h := range l.holdings.list {
		l.admits(h)
	}
	for name := range names {
		l.containers.deleted(name)
	}
	l.holdings.closing = true
	_ = l.one("end", func(n *node.Node) error {
		n.RemoveDeadBindings()
		for _, h := range l.holdings.list {
			if h.over = true; h.acked {
				_, _ = grants.Release(n, h.id, false)
			}
		}
		return nil
	})
	l.serveAll()
	l.checkIdle()
	for _, g := range l.view().Grants { // of processes that were killed before they could say so
		_ = l.one("end", func(n *node.Node) error { _, err := grants.Release(n, g.ID, false); return err })
	}
	l.settleMPS()
	l.empty()
}

// settleRecords: after a pass without faults each record is that of a grant, and says what the
// grant has.
func (l *life) settleRecords() {
	l.reconcile()
	l.report(checkRecords(l.view(), l.containers.boxes, l.eyes.Policy, true))
}

// reconcile has the ledger checked, in which nothing may be wrong then.
func (l *life) reconcile() {
	var report ledger.Report
	err := l.one("settle", func(n *node.Node) (err error) {
		report, err = grants.Reconcile(n)
		return err
	})
	if err != nil {
		l.fail("the ledger cannot be checked: %v", err)
	}
	l.report(checkSound(report))
}

// settleUsers has what fits be granted.
func (l *life) settleUsers() {
	l.goneDaemon() // if it was told to end before
	l.startDaemon()
	for _, r := range l.users.requests {
		if r.state == cut {
			l.users.send(r)
		}
	}
	l.passes()
	l.report(l.users.checkServed(l.view()))
}

// settleMPS looks after the control daemons until nothing is left to do. Meanwhile clients change
// their limits for the last time.
func (l *life) settleMPS() {
	l.mps.settle()
	for i := range 6 {
		if i == 3 {
			for _, c := range l.controls {
				l.mps.changedByClient(c)
			}
		}
		l.awake += time.Minute
		l.mps.supervise()
		l.drain()
	}
	l.report(checkSettled(l.view(), l.controls))
}

// passes are two passes of the daemon, one after the other.
func (l *life) passes() {
	for range 2 {
		l.drain()
		l.users.pass()
		l.drain()
	}
}

// serveAll: when grants end one after the other, each request that waits gets its own.
func (l *life) serveAll() {
	for range len(l.users.requests) + 2 {
		l.passes()
		if !slices.ContainsFunc(l.users.requests, func(r *userAsk) bool { return r.state == asking }) {
			return
		}
		for _, g := range l.view().Grants {
			_ = l.one("end", func(n *node.Node) error {
				_, err := grants.Release(n, g.ID, false)
				return err
			})
		}
	}
	for _, r := range l.users.requests {
		if r.state == asking {
			l.fail("%s waits for ever, and everything is free", r.Ask.Label)
		}
	}
}

// checkIdle: what no container uses is released once its time is over.
func (l *life) checkIdle() {
	l.passes()
	l.awake += keep * 10
	l.passes()
	for _, g := range l.view().Grants {
		if g.Source == grant.ByUser && limitsOf[g.User].idle > 0 && len(g.Bindings) == 0 && g.Live(l.now) {
			l.fail("grant %s of user %d is idle, and was not released", g.ID, g.User)
		}
	}
}

// drain runs every process to its end.
func (l *life) drain() {
	for range 100000 {
		ready := l.ready()
		if len(ready) == 0 || l.wrong != "" {
			break
		}
		l.run(ready[0])
		l.check()
	}
	for _, p := range l.all {
		if !p.done && p.blocked == nil && l.wrong == "" {
			l.fail("%s waits for a lock that no process holds", p.name)
		}
	}
}

// one runs one process alone, to its end.
func (l *life) one(name string, act func(n *node.Node) error) (err error) {
	l.begin(name, func(_ *process, n *node.Node) { err = act(n) })
	l.drain()
	return err
}

// admits: a container that refers to a free grant starts.
func (l *life) admits(h *holding) {
	v := l.view()
	i := slices.IndexFunc(v.Grants, func(g grant.Grant) bool { return g.ID == h.id })
	if !h.acked || i < 0 || len(v.Grants[i].Bindings) > 0 || !v.Grants[i].Live(l.now) ||
		v.Grants[i].Mode == grant.MIG { // its device is gone
		return
	}
	name := 0
	for name < names && slices.ContainsFunc(l.containers.boxes, func(b *box) bool { return b.name == name }) {
		name++
	}
	if name == names { // all are in use
		name = l.random.IntN(names)
	}
	l.containers.deleted(name)
	before := len(l.containers.boxes)
	_ = l.one(nameOf(name), func(n *node.Node) error {
		l.containers.make(l.current, n, name, grant.Containerd, h.annotations())
		return nil
	})
	if len(l.containers.boxes) == before || l.containers.boxes[before].grant != h.id {
		l.fail("a container with free grant %s does not get it, and no fault was left", h.id)
	}
	l.containers.deleted(name) // its id and its grant are for the next
}

// empty: nothing is left of all that was, and all GPUs can be granted again.
func (l *life) empty() {
	l.reconcile()
	for _, dir := range []string{"state/grants", "state/owners", "state/gpus", "run/bindings", "run/grants",
		"run/cgroups", "run/creates", "run/limits",
		"run/mps"} {
		entries, _ := os.ReadDir(l.path(dir))
		for _, e := range entries {
			if l.wrong == "" {
				l.fail("%s is left", filepath.Join(dir, e.Name()))
			}
		}
	}
	err := l.one("end", func(n *node.Node) error {
		_, _, err := grants.Enter(n, admission.Ask{Owner: grant.Bearer, Mode: grant.Exclusive, GPUs: l.gpus,
			Source: "cli"})
		return err
	})
	if err != nil {
		l.fail("all GPUs are free, and cannot be granted: %v", err)
	}
}
