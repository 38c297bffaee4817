package sim

import (
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
)

// check compares the ledger with the promises of a node, after every step.
func (l *life) check() {
	if l.failed != "" {
		l.fail("%s", l.failed)
	}
	v := l.view()
	for _, d := range v.Damaged {
		l.fail("grant %s is damaged: %s", d.ID, d.Err)
	}
	l.checkSums(v)
	l.checkDevices(v)
	l.checkFound(v)
	l.checkOwners(v)
	l.checkBoxes(v)
	l.checkAlive(v)
	l.checkHeld(v)
	l.checkLimits(v)
	l.checkUsers(v)
	l.checkControls()
	for _, p := range l.all {
		if p.creates && !p.done {
			l.sawReady(p)
		}
	}
}

// checkSums: no GPU has more memory or compute granted than it has, is in two modes, or is
// exclusive to two.
func (l *life) checkSums(v grant.View) {
	for i := range l.gpus {
		var sum grant.Bytes
		compute := 0
		var mode grant.Mode
		var has []string
		for _, g := range v.Grants {
			if !g.Live(l.now) || !g.Has(uuid(i)) {
				continue
			}
			if mode != "" && (mode != g.Mode || mode == grant.Exclusive) {
				l.fail("%s is in mode %s, and grant %s has it in mode %s", uuid(i), mode, g.ID, g.Mode)
			}
			mode, compute = g.Mode, compute+g.Compute
			for _, s := range g.GPUs {
				if s.UUID == uuid(i) {
					sum += s.Memory
					has = append(has, string(g.ID)+" "+s.Memory.String())
				}
			}
		}
		if sum > card {
			l.fail("%s are granted of %s, which has %s: %v", sum, uuid(i), card, has)
		}
		if compute > 100 {
			l.fail("%d%% of the compute of %s are granted: %v", compute, uuid(i), has)
		}
	}
}

// checkOwners: a pod's container has one live grant. A bearer may have many.
func (l *life) checkOwners(v grant.View) {
	has := map[grant.Owner]grant.ID{}
	for _, g := range v.Grants {
		if g.Owner == grant.Bearer || !g.Live(l.now) {
			continue
		}
		if other := has[g.Owner]; other != "" {
			l.fail("%s has the grants %s and %s", g.Owner, other, g.ID)
		}
		has[g.Owner] = g.ID
	}
}

// checkAlive: a grant is held for a container of which something runs, or whose creator does. A
// view has no bindings of containers that the kernel shows to be dead.
func (l *life) checkAlive(v grant.View) {
	for _, g := range v.Grants {
		for _, at := range g.Bindings {
			isBox := func(b *box) bool { return nameOf(b.name) == at.Container && b.runs() }
			creates := func(p *process) bool { return p.binds && !p.done && p.pid == at.Creator.PID }
			if !slices.ContainsFunc(l.boxes, isBox) && !slices.ContainsFunc(l.all, creates) {
				l.fail("grant %s is held for %s, of which nothing runs", g.ID, at.Container)
			}
		}
	}
}

// checkBoxes: what runs with a grant is bound to it, alone.
func (l *life) checkBoxes(v grant.View) {
	for i, b := range l.boxes {
		if b.grant == "" {
			continue
		}
		bound := slices.ContainsFunc(v.Grants, func(g grant.Grant) bool {
			return g.ID == b.grant && slices.ContainsFunc(g.Bindings, func(at grant.Binding) bool {
				return at.Container == nameOf(b.name)
			})
		})
		if !bound {
			l.fail("container %s runs with grant %s, which is not bound to it", nameOf(b.name), b.grant)
		}
		for _, other := range l.boxes[:i] {
			if other.grant == b.grant {
				l.fail("containers %s and %s run with grant %s", nameOf(b.name), nameOf(other.name), b.grant)
			}
			has := func(u string) bool { return slices.Contains(b.gpus, u) }
			shares := slices.ContainsFunc(other.gpus, has)
			if shares && (b.alone || other.alone) {
				l.fail("containers %s and %s run on one GPU, one of them alone", nameOf(b.name),
					nameOf(other.name))
			}
		}
	}
}

// keep is longer than an expired grant is kept.
const keep = 24 * time.Hour

// checkHeld: no acknowledged grant is lost or changed, and none comes back.
func (l *life) checkHeld(v grant.View) {
	l.sawEntered(v)
	for _, h := range l.held {
		if !h.acked || !h.expires.IsZero() && !l.latest.Before(h.expires.Add(keep)) {
			continue
		}
		i := slices.IndexFunc(v.Grants, func(g grant.Grant) bool { return g.ID == h.id })
		if i >= 0 && len(v.Grants[i].Bindings) > 0 {
			h.used = l.awake
		}
		switch {
		case i < 0 && l.tried[h.id] && l.awake-h.used >= limitsOf[h.user].idle:
			// a pass that is at work may put it back, and after its end by force a power cut may
			h.over = h.over || l.daemon == nil || !l.daemon.passing
		case i < 0 && !h.over:
			l.fail("grant %s (%s) was acknowledged, and is lost", h.id, h.label)
		case i >= 0 && v.Grants[i].Draining && !h.over:
			l.fail("grant %s (%s) is draining, and nobody has released it", h.id, h.label)
		case i >= 0 && h.released && v.Grants[i].Live(l.now) && len(v.Grants[i].Bindings) == 0:
			l.fail("grant %s (%s) was released, and is back", h.id, h.label)
		case i >= 0 && !slices.Contains(h.possible, v.Grants[i].Memory()):
			l.fail("grant %s has %s, acknowledged are %v", h.id, v.Grants[i].Memory(), h.possible)
		}
	}
}

// sawEntered notes when each grant was first seen.
func (l *life) sawEntered(v grant.View) {
	for _, g := range v.Grants {
		if _, seen := l.entered[g.ID]; !seen {
			l.entered[g.ID] = l.awake
		}
	}
}

// finish is the end of a life, without faults: what fits is admitted, and nothing is left when all
// containers are gone.
func (l *life) finish() {
	l.rates, l.calm = rates{}, true
	l.drain()
	l.sick, l.divisions = make([]bool, l.gpus), make([]division, l.gpus)
	must(l.machine.scan(l.eyes))
	l.unwatched()
	l.check()
	l.settled()
	l.settleUsers()
	l.settledControls()
	for _, h := range l.held {
		l.admits(h)
	}
	for name := range names {
		l.deleted(name)
	}
	l.closing = true
	_ = l.one("end", func(n *node.Node) error {
		n.RemoveDeadBindings()
		for _, h := range l.held {
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
	name := slices.IndexFunc(make([]int, names), func(int) bool { return true })
	for ; name < names; name++ {
		if !slices.ContainsFunc(l.boxes, func(b *box) bool { return b.name == name }) {
			break
		}
	}
	if name == names {
		return
	}
	l.deleted(name)
	before := len(l.boxes)
	_ = l.one(nameOf(name), func(n *node.Node) error {
		l.make(l.current, n, name, grant.Containerd, h.annotations())
		return nil
	})
	if len(l.boxes) == before || l.boxes[before].grant != h.id {
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
