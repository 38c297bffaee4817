package daemon

import (
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
)

// book is the ledger as it was last read, for who looks at it each second: to read a thousand grants costs more than to count
// what a thousand processes use.
type book struct {
	node     *node.Node // whose
	overview node.Overview
	read     time.Time
	changed  time.Time
	changes  map[string]uint64 // seen from one reading to the next
}

// bookRest is the longest time for which it is believed: containers that end change no file. What they used is gone with them, so
// nothing wrong is said meanwhile.
const bookRest = 30 * time.Second

// settled is older than a change that the clock of file systems could put at the time of another (one tick, 10 ms at most).
const settled = 20 * time.Millisecond

// open gives the ledger as it is, or with anew surely as it is now.
func (b *book) open(n *node.Node, anew bool) (o node.Overview, fresh bool, err error) {
	changed := n.Ledger.Changed()
	now := time.Now()
	if !anew && b.node == n && b.changed.Equal(changed) && b.read.Sub(changed) > settled && now.Sub(b.read) < bookRest {
		return b.overview, false, nil
	}
	o, err = n.Overview()
	if err != nil {
		return o, true, err
	}
	if b.node != nil {
		b.count(b.overview.Grants, o.Grants)
	}
	b.node, b.overview, b.read, b.changed = n, o, now, changed
	return o, true, nil
}

// count tells what was done to the ledger between two readings. What came and went between them is not seen.
func (b *book) count(before, after []grant.Grant) {
	if b.changes == nil {
		b.changes = map[string]uint64{}
	}
	was, is := contents(before), contents(after)
	for key, kind := range is {
		if _, found := was[key]; !found {
			b.changes[kind[0]]++
		}
	}
	for key, kind := range was {
		if _, found := is[key]; !found {
			b.changes[kind[1]]++
		}
	}
}

// operations are the words of what is done to grants and bindings.
var operations = []string{"grant", "release", "bind", "unbind"}

func contents(grants []grant.Grant) map[string][2]string {
	all := map[string][2]string{}
	for _, g := range grants {
		all[string(g.ID)] = [2]string{operations[0], operations[1]}
		for _, b := range g.Bindings {
			all[string(g.ID)+"\x00"+b.RuntimeRoot+"\x00"+b.Container] = [2]string{operations[2], operations[3]}
		}
	}
	return all
}
