package sim

import (
	"os"
	"path/filepath"
	"slices"

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
	l.settled()
	l.settleUsers()
	l.settledControls()
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
	l.settledControls()
	l.empty()
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
			l.fail("%s waits for a lock that nobody has", p.name)
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
	if name == names {
		return
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
}

// empty: nothing is left of all that was, and all GPUs can be granted again.
func (l *life) empty() {
	err := l.one("end", func(n *node.Node) error { _, err := grants.Reconcile(n); return err })
	if err != nil {
		l.fail("the ledger cannot be checked: %v", err)
	}
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
	err = l.one("end", func(n *node.Node) error {
		_, _, err := grants.Enter(n, admission.Ask{Owner: grant.Bearer, Mode: grant.Exclusive, GPUs: l.gpus,
			Source: "cli"})
		return err
	})
	if err != nil {
		l.fail("all GPUs are free, and cannot be granted: %v", err)
	}
}
