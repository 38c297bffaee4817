package ledger

import (
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// glance is what one create has found out of containers by a look at all processes of the node.
// Such a look takes 17 microseconds a process, and the node's other creates wait for the lock
// meanwhile: with the ledger locked none is taken. A nil one keeps nothing.
type glance struct {
	lives  map[sighting]grant.Life
	locked bool
}

// sighting tells a binding from a later one of the same container. What was found dead of one stays
// so.
type sighting struct {
	root, container string
	creator         grant.Process
	created         time.Time
}

func sightingOf(b *grant.Binding) sighting {
	return sighting{b.RuntimeRoot, b.Container, b.Creator, b.Created.UTC()}
}

// Glance gives the ledger for one create, to one goroutine. What it takes a look at all processes
// to tell of a binding it tells once, before the ledger is locked. Of a binding that is seen first
// with the ledger locked it cannot be told then.
func (l *Ledger) Glance() *Ledger {
	own := *l
	own.glance = &glance{lives: map[sighting]grant.Life{}}
	return &own
}

// known fills in what is known, and gives the bindings of which it is not and may be found out now.
func (g *glance) known(bindings []*grant.Binding) (rest []*grant.Binding) {
	if g == nil {
		return bindings
	}
	for _, b := range bindings {
		life, known := g.lives[sightingOf(b)]
		if !known && !g.locked {
			rest = append(rest, b)
			continue
		}
		b.Life, b.Left = life, life != grant.Dead // LifeUnknown where it is not known
	}
	return rest
}

func (g *glance) keep(b *grant.Binding) {
	if g != nil {
		g.lives[sightingOf(b)] = b.Life
	}
}

// lock says that the ledger is locked, until the function that it gives is called.
func (g *glance) lock() (unlock func()) {
	if g == nil {
		return func() {}
	}
	g.locked = true
	return func() { g.locked = false }
}
