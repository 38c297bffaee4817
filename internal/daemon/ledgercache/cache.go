// Package ledgercache keeps the ledger as it was last read, for the managers that need it in every
// pass.
package ledgercache

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/daemonlog"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Cache is the ledger as it was last read. To read a thousand grants costs more than to count what
// a thousand processes use. It is read again when one of its files has changed, and when a
// container or a program has ended, which changes no file: the cache watches the first process of
// each container and the process that each program was granted to (host.ExitWatcher).
type Cache struct {
	mu             sync.Mutex
	node           *node.Node // whose ledger it is
	overview       grants.Overview
	read           time.Time
	stamp          Stamp
	changes        map[string]uint64 // from one reading to the next, by operation
	readings       uint64
	exits          *host.ExitWatcher
	newExitWatcher func() (*host.ExitWatcher, error) // nil: host.NewExitWatcher
	exitsProblem   daemonlog.Condition               // why there is no exit watcher
	// of programs whose own process is not held: mostly it has ended, and others run
	unheld []grant.Binding
	// the exit watcher holds a process of every binding that is not in unheld
	allWatched bool
}

// New makes a cache that logs to a log. The zero value logs nothing.
func New(log *logrus.Logger) *Cache {
	return &Cache{exitsProblem: daemonlog.Condition{Log: log}}
}

// Stamp tells one state of the ledger's and the inventory's files from another.
type Stamp struct {
	ledger    ledger.Stamp
	inventory host.Stamp
}

// StampOf returns the stamp of a node's files now.
func StampOf(n *node.Node) Stamp {
	return Stamp{n.Ledger.Stamp(), n.InventoryStamp()}
}

// Before reports whether a read that began after the stamp was taken has missed no change that left
// the stamp the same (host.Stamp.Before).
func (s Stamp) Before(read time.Time) bool {
	return s.ledger.Before(read) && s.inventory.Before(read)
}

// For how long a reading is valid. If the end of some container would not be noticed, the time is
// short; the use of that container ends with it, so nothing wrong is reported meanwhile. Otherwise
// it is a precaution.
const (
	MaxAge        = 30 * time.Second
	maxAgeWatched = 2 * time.Minute
)

// Read returns the ledger. With anew it is read now, and fresh says whether it was.
func (c *Cache) Read(n *node.Node, anew bool) (o grants.Overview, fresh bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readLocked(n, anew)
}

// Current returns the ledger with the present lives of all containers, for metrics and the page.
func (c *Cache) Current(n *node.Node) (grants.Overview, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, fresh, err := c.readLocked(n, false)
	if err == nil && !fresh && !c.allWatched {
		o, fresh, err = c.readLocked(n, true)
	}
	if err != nil || fresh {
		return o, err
	}
	return grants.ReadAgain(n, o)
}

// AllRun reports whether every container and program in the ledger runs. It says so only if the end
// of each would have been noticed.
func (c *Cache) AllRun(n *node.Node) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _, err := c.readLocked(n, false)
	return err == nil && c.allWatched
}

func (c *Cache) readLocked(n *node.Node, anew bool) (o grants.Overview, fresh bool, err error) {
	ended := c.anyEnded() || c.anyUnheldEnded()
	stamp, now := StampOf(n), time.Now() // in this order: Stamp.Before
	rest := MaxAge
	if c.allWatched {
		rest = maxAgeWatched
	}
	if !anew && !ended && c.node == n && c.stamp == stamp && stamp.Before(c.read) && now.Sub(c.read) < rest {
		return c.overview, false, nil
	}
	c.allWatched = false
	o, err = grants.Read(n)
	if err != nil {
		return o, true, err
	}
	if c.node != nil {
		c.countChanges(c.overview.Grants, o.Grants)
	}
	c.node, c.overview, c.read, c.stamp = n, o, now, stamp
	c.readings++
	c.allWatched = c.watchBindings(n, o.Grants)
	return o, true, nil
}

// anyEnded reports whether a container's first process has ended since the last call.
func (c *Cache) anyEnded() bool {
	if c.exits == nil {
		return false
	}
	pids, err := c.exits.Ended()
	if err != nil {
		c.Close()
	}
	return len(pids) > 0 || err != nil
}

// anyUnheldEnded asks the kernel as a reading does: processes come and go in a cgroup, or leave it.
func (c *Cache) anyUnheldEnded() bool {
	return slices.ContainsFunc(c.unheld, func(b grant.Binding) bool {
		c.node.Ledger.Containers.Examine(&b)
		return b.Life != grant.Alive
	})
}

// watchBindings has the end of each binding noticed, and reports whether these are all bindings of
// the ledger. A container that it does not know yet may be in the next reading.
func (c *Cache) watchBindings(n *node.Node, all []grant.Grant) bool {
	c.unheld = nil
	if c.exits == nil && n.Host.Proc == "/proc" { // else the pids are not this machine's
		begin := host.NewExitWatcher
		if c.newExitWatcher != nil {
			begin = c.newExitWatcher
		}
		var err error
		c.exits, err = begin()
		c.exitsProblem.Update(err,
			"that a container has ended is noticed late, and the ledger is read more often")
	}
	if c.exits == nil {
		return false
	}
	pids, held := map[int]bool{}, 0
	for _, g := range all {
		for _, of := range g.Bindings {
			switch {
			case of.Life != grant.Alive:
			case grants.IsOfProgram(n, of):
				if c.watchProgram(n, of) {
					pids[of.Creator.PID] = true
				} else {
					c.unheld = append(c.unheld, of)
				}
				held++
			case of.PID > 0 && c.watchContainer(n, of):
				pids[of.PID] = true
				held++
			}
		}
	}
	for _, pid := range c.exits.PIDs() {
		if !pids[pid] {
			c.exits.Remove(pid)
		}
	}
	return held == n.Ledger.Bindings.Count()
}

// watchProgram holds the process that a program's grant was entered for: while that runs, the
// binding is alive. It returns false if that has ended, or cannot be held.
func (c *Cache) watchProgram(n *node.Node, of grant.Binding) bool {
	if c.exits.Add(of.Creator.PID) != nil {
		return false
	}
	runs, err := n.Host.Runs(of.Creator)
	return runs && err == nil
}

// watchContainer holds the first process of a container. If the ledger still names this process
// once it is held, it is the container's init process.
func (c *Cache) watchContainer(n *node.Node, of grant.Binding) bool {
	if c.exits.Has(of.PID) {
		return true
	}
	if c.exits.Add(of.PID) != nil {
		return false
	}
	now, _ := n.Ledger.Bindings.Of(of.RuntimeRoot, of.Container)
	if now.Life == grant.Alive && now.PID == of.PID {
		return true
	}
	c.exits.Remove(of.PID)
	return false
}

// Changes returns how often each operation was seen.
func (c *Cache) Changes() map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.changes)
}

// Close closes the exit watcher.
func (c *Cache) Close() {
	if c.exits != nil {
		c.exits.Close()
		c.exits = nil
	}
}

// countChanges counts what was done to the ledger between two readings. A grant or binding that
// came and went in between is not seen.
func (c *Cache) countChanges(before, after []grant.Grant) {
	if c.changes == nil {
		c.changes = map[string]uint64{}
	}
	was, is := operationsByKey(before), operationsByKey(after)
	for key, kind := range is {
		if _, found := was[key]; !found {
			c.changes[kind[0]]++
		}
	}
	for key, kind := range was {
		if _, found := is[key]; !found {
			c.changes[kind[1]]++
		}
	}
}

// operations names what is done to grants and bindings.
var operations = []string{"grant", "release", "bind", "unbind"}

func operationsByKey(grants []grant.Grant) map[string][2]string {
	all := map[string][2]string{}
	for _, g := range grants {
		all[string(g.ID)] = [2]string{operations[0], operations[1]}
		for _, b := range g.Bindings {
			use := [2]string{operations[2], operations[3]}
			all[string(g.ID)+"\x00"+b.RuntimeRoot+"\x00"+b.Container] = use
		}
	}
	return all
}
