// Package ledgercache keeps the ledger as it was last read, for the managers that need it in every
// pass.
package daemon

import (
	"maps"
	"sync"
	"time"

	"github.com/gpuledger/gpuledger/internal/daemon/daemonlog"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// book is the ledger as it was last read, for all of the daemon that looks at it again and again: to read a thousand grants costs more
// than to count what a thousand processes use. It is read anew when a file of it has changed, and when a container has ended, which
// changes none: the first process of each is held (host.Vigil).
type Cache struct {
	mu           sync.Mutex
	node         *node.Node // whose
	overview     node.Overview
	read         time.Time
	stamp        Stamp
	changes      map[string]uint64 // seen from one reading to the next
	readings     uint64
	vigil        *host.Vigil
	newVigil     func() (*host.Vigil, error) // nil: host.NewVigil
	vigilProblem daemonlog.Condition         // there is none
	allWatched   bool                        // all of the bindings are of containers whose first process is held
}

// stamp tells one state of the files from another.
type Stamp struct {
	ledger    ledger.Stamp
	inventory host.Stamp
}

func StampOf(n *node.Node) Stamp {
	return Stamp{n.Ledger.Stamp(), n.InventoryStamp()}
}

func (s Stamp) Before(read time.Time) bool { return s.ledger.Before(read) && s.inventory.Before(read) }

// How long it is believed. A binding whose container's end would not be noticed is looked at again soon; what it used is gone with it, so
// nothing wrong is said meanwhile. The others, in case that something was overlooked.
const (
	MaxAge        = 30 * time.Second
	maxAgeWatched = 2 * time.Minute
)

// open gives the ledger as it is, or with anew surely as it is now.
func (b *Cache) Read(n *node.Node, anew bool) (o node.Overview, fresh bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.readLocked(n, anew)
}

// now gives the ledger as it is, with the lives of all containers, for who shows it.
func (b *Cache) Current(n *node.Node) (node.Overview, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o, fresh, err := b.readLocked(n, false)
	if err == nil && !fresh && !b.allWatched {
		o, fresh, err = b.readLocked(n, true)
	}
	if err != nil || fresh {
		return o, err
	}
	return n.OverviewAgain(o)
}

// quiet reports whether each container runs that the ledger says is there: their first processes are held, and none has ended.
func (b *Cache) AllRun(n *node.Node) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _, err := b.readLocked(n, false)
	return err == nil && b.allWatched
}

func (b *Cache) readLocked(n *node.Node, anew bool) (o node.Overview, fresh bool, err error) {
	ended := b.anyEnded()
	now, is := time.Now(), StampOf(n)
	rest := MaxAge
	if b.allWatched {
		rest = maxAgeWatched
	}
	if !anew && !ended && b.node == n && b.stamp == is && is.Before(b.read) && now.Sub(b.read) < rest {
		return b.overview, false, nil
	}
	b.allWatched = false
	o, err = n.Overview()
	if err != nil {
		return o, true, err
	}
	if b.node != nil {
		b.countChanges(b.overview.Grants, o.Grants)
	}
	b.node, b.overview, b.read, b.stamp = n, o, now, is
	b.readings++
	b.allWatched = b.watchContainers(n, o.Grants)
	return o, true, nil
}

// ended reports whether a container's first process has ended since it was asked last.
func (b *Cache) anyEnded() bool {
	if b.vigil == nil {
		return false
	}
	pids, err := b.vigil.Ended()
	if err != nil {
		b.close()
	}
	return len(pids) > 0 || err != nil
}

// hold watches the first process of each container, and reports whether that is all that the ledger has. What it takes for it may be there
// at the next reading.
func (b *Cache) watchContainers(n *node.Node, grants []grant.Grant) bool {
	if b.vigil == nil && n.Host.Proc == "/proc" { // else pids there are not this machine's
		begin := host.NewVigil
		if b.newVigil != nil {
			begin = b.newVigil
		}
		var err error
		b.vigil, err = begin()
		b.vigilProblem.Update(err, "that a container has ended is noticed late, and the ledger is read more often")
	}
	if b.vigil == nil {
		return false
	}
	pids, held := map[int]bool{}, 0
	for _, g := range grants {
		for _, of := range g.Bindings {
			if of.Life == grant.Alive && of.PID > 0 && b.watchContainer(n, of) {
				pids[of.PID] = true
				held++
			}
		}
	}
	for _, pid := range b.vigil.Held() {
		if !pids[pid] {
			b.vigil.Release(pid)
		}
	}
	records := -1
	_ = n.Ledger.View(func(tx *ledger.Tx) error {
		records = tx.Records()
		return nil
	})
	return held == records
}

// holds watches the first process of a container. Is it the ledger's still once it is held, it is he who is.
func (b *Cache) watchContainer(n *node.Node, of grant.Binding) bool {
	if b.vigil.Holds(of.PID) {
		return true
	}
	if b.vigil.Hold(of.PID) != nil {
		return false
	}
	now := grant.Binding{}
	_ = n.Ledger.View(func(tx *ledger.Tx) (err error) {
		now, err = tx.Binding(of.RuntimeRoot, of.Container)
		return err
	})
	if now.Life == grant.Alive && now.PID == of.PID {
		return true
	}
	b.vigil.Release(of.PID)
	return false
}

// counted tells what was done, by operation.
func (b *Cache) Changes() map[string]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.changes)
}

// close lets go of all that is held.
func (b *Cache) close() {
	if b.vigil != nil {
		b.vigil.Close()
		b.vigil = nil
	}
}

// count tells what was done to the ledger between two readings. What came and went between them is not seen.
func (b *Cache) countChanges(before, after []grant.Grant) {
	if b.changes == nil {
		b.changes = map[string]uint64{}
	}
	was, is := operationsByKey(before), operationsByKey(after)
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

func operationsByKey(grants []grant.Grant) map[string][2]string {
	all := map[string][2]string{}
	for _, g := range grants {
		all[string(g.ID)] = [2]string{operations[0], operations[1]}
		for _, b := range g.Bindings {
			all[string(g.ID)+"\x00"+b.RuntimeRoot+"\x00"+b.Container] = [2]string{operations[2], operations[3]}
		}
	}
	return all
}
