package sim

import (
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/internal/node"
)

// checkLimits: a container that the shim limits has the record of its grant, and no record lets
// more be used than is granted.
func (l *life) checkLimits(v grant.View) {
	if l.limitsAt == l.seen.steps {
		return
	}
	l.limitsAt = l.seen.steps
	root := l.eyes.Policy.LimitsRoot()
	kept := limits.Kept(root)
	for _, b := range l.boxes {
		if b.limited && !slices.Contains(kept, string(b.grant)) {
			l.fail("container %s runs without the record of grant %s", nameOf(b.name), b.grant)
		}
	}
	for _, g := range v.Grants {
		if !slices.Contains(kept, string(g.ID)) || !g.Live(l.now) {
			continue
		}
		record, err := limits.Open(l.eyes.Policy.LimitsDir(g.ID))
		if err != nil { // it is being made
			continue
		}
		for _, s := range g.GPUs {
			if b, err := record.Bytes(s.UUID); err != nil || b > s.Memory {
				l.fail("the record of grant %s has %s of %s, which has %s (%v)", g.ID, b, s.UUID, s.Memory,
					err)
			}
		}
		record.Close()
	}
}

// settled: after a pass without faults each record is that of a grant, and says what the grant has.
func (l *life) settled() {
	err := l.one("settle", func(n *node.Node) error { _, err := grants.Reconcile(n); return err })
	if err != nil {
		l.fail("the ledger cannot be checked: %v", err)
	}
	l.checkRecords(l.view(), true)
}

// settledBy: when a pass over the records is over that has met no error, they are what the ledger
// says: records are changed under the ledger's lock, and no process has had that since.
func (l *life) settledBy(p *process, err error) {
	if err != nil || p.faults > 0 {
		return
	}
	l.current = nil
	defer func() { l.current = p }()
	l.checkRecords(l.view(), false)
}

// checkRecords: each record says what its grant has. alone: nothing has happened since a pass, so
// none is left of a grant that is over. Otherwise a container may have ended, which takes no lock.
func (l *life) checkRecords(v grant.View, alone bool) {
	for _, name := range limits.Kept(l.eyes.Policy.LimitsRoot()) {
		i := slices.IndexFunc(v.Grants, func(g grant.Grant) bool { return string(g.ID) == name })
		if i < 0 || !v.Grants[i].Live(l.now) {
			if alone {
				l.fail("the record of %s is left, which is over", name)
			}
			continue
		}
		g := v.Grants[i]
		record, err := limits.Open(l.eyes.Policy.LimitsDir(g.ID))
		if err != nil {
			if slices.ContainsFunc(l.boxes, func(b *box) bool { return b.limited && b.grant == g.ID }) {
				l.fail("the record of grant %s cannot be read: %v", g.ID, err)
			}
			continue
		}
		for _, s := range g.GPUs {
			if b, err := record.Bytes(s.UUID); err != nil || b != s.Memory {
				l.fail("the record of grant %s has %s of %s, which has %s (%v)", g.ID, b, s.UUID, s.Memory,
					err)
			}
		}
		record.Close()
	}
}
