package sim

import (
	"maps"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// watch is a look of gpuledgerd at what is used of the GPUs: by containers beyond their grants, by
// containers without one, and by processes of the node.
func (l *life) watch() {
	found := ledger.Found{Outside: map[string]grant.Bytes{}, Held: map[string][]grant.Process{}}
	for _, g := range l.view().Grants {
		for _, s := range g.GPUs {
			if len(g.Bindings) > 0 && !g.Mode.IsWhole() && l.random.IntN(2) == 0 {
				excess := grant.Bytes(1+l.random.IntN(3)) * grant.GiB
				found.Excess = append(found.Excess, grant.Excess{Grant: g.ID, GPU: s.UUID, Bytes: excess})
				found.Outside[s.UUID] += excess
			}
		}
	}
	for _, d := range l.inventory.Devices() {
		if l.random.IntN(4) == 0 {
			found.Outside[d.UUID()] += grant.Bytes(1+l.random.IntN(4)) * grant.GiB
		}
		free := slices.DeleteFunc(slices.Clone(l.boxes),
			func(b *box) bool { return b.pid == 0 || b.grant != "" })
		if i := l.random.IntN(2 * names); len(free) > 0 && i < names {
			b := free[i%len(free)]
			found.Held[d.UUID()] = []grant.Process{{PID: b.pid, Start: b.start}}
		}
	}
	l.begin("watch", func(_ *process, n *node.Node) { _ = n.Ledger.SetFound(found) })
}

// unwatched is when nothing is used any more that was not granted.
func (l *life) unwatched() {
	err := l.one("watch", func(n *node.Node) error { return n.Ledger.SetFound(ledger.Found{}) })
	if err != nil {
		l.fail("what is used cannot be recorded: %v", err)
	}
}

// checkFound: what was granted since the last step is free, by what was found before. A grant that
// was there already is not granted anew: one that had expired may be bound in the same moment, and
// a release that cannot write puts its grant back.
func (l *life) checkFound(v grant.View) {
	before := l.before
	l.before = v
	defer l.note(v)
	if !l.watches || !v.Now.Equal(before.Now) || !maps.Equal(v.Outside, before.Outside) ||
		!slices.Equal(v.Excess, before.Excess) || !maps.Equal(v.Held, before.Held) {
		return
	}
	for _, g := range v.Grants {
		for _, s := range g.GPUs {
			if g.Live(l.now) && s.Memory > l.had[shareOf{g.ID, s.UUID}] {
				l.checkFree(v, g, s.UUID)
			}
		}
	}
}

// note keeps what each grant has, as it was when it was last there.
func (l *life) note(v grant.View) {
	for _, g := range v.Grants {
		for _, s := range g.GPUs {
			l.had[shareOf{g.ID, s.UUID}] = s.Memory
		}
	}
}

type shareOf struct {
	id   grant.ID
	uuid string
}

// checkFree: a GPU or MIG device that was granted whole is not used outside the grant. One that was
// granted in part has room for the part.
func (l *life) checkFree(v grant.View, g grant.Grant, uuid string) {
	used := v.Outside[uuid]
	for _, e := range v.Excess {
		if e.Grant == g.ID && e.GPU == uuid {
			used -= e.Bytes
		}
	}
	if g.Mode.IsWhole() {
		if used > 0 || v.Held[uuid] {
			l.fail("grant %s has all of %s, of which %s are used (held: %v)", g.ID, uuid, used, v.Held[uuid])
		}
		return
	}
	for _, o := range v.Grants {
		for _, s := range o.GPUs {
			if s.UUID == uuid && o.Live(l.now) {
				used += s.Memory
			}
		}
	}
	if used > card {
		l.fail("grant %s has a part of %s, of which %s are granted or used: %v", g.ID, uuid, used, v.Outside)
	}
}
