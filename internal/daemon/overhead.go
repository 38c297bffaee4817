package daemon

import (
	"errors"
	"maps"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// overheads tell the shim of each grant how much its containers use beyond what their processes count themselves: contexts, code,
// memory that they had in other ways. It counts against the grant at the next allocation.
type overheads struct {
	told     map[grantOn]overhead
	accounts map[grant.ID]*account
	unread   map[grant.ID]time.Time // until when
	used     func(*limits.Account, string) (grant.Bytes, error)
	room     int // how many are kept open; those of more grants are opened each time, which takes longer than all else of a pass
	pass     int
}

// account is a grant's files, kept open.
type account struct {
	*limits.Account
	pass int // in which the grant was last used
}

// accountsRoom is for how many accounts there is room: a descriptor each, of an eighth of those that the program may have (two host.Vigil take half of
// them), and a mapping each, of which the kernel allows 65,530 (vm.max_map_count).
func accountsRoom() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur/8, 1<<14))
}

type grantOn struct {
	id  grant.ID
	gpu string
}

type overhead struct {
	used grant.Bytes // in truth, when it was last told
	at   time.Time
	pass int // in which the grant was last used
}

// How much the truth has to change, and how old it may get, before the account is read again: that is up to 200 KiB and a thousand
// locks to ask for, of each grant. What is less than a hundredth of a grant can wait for the few seconds.
const (
	overheadStep = 2 * grant.MiB
	overheadPart = 100
	overheadRest = 5 * time.Second
	slowRest     = time.Minute // of an account that its container has made slow to read
)

// publish brings the records up to date of the grants that have some.
func (o *overheads) publish(n *node.Node, r watch.Report) {
	if o.told == nil {
		o.told, o.accounts, o.unread = map[grantOn]overhead{}, map[grant.ID]*account{}, map[grant.ID]time.Time{}
		if o.used == nil {
			o.used = (*limits.Account).Used
		}
		if o.room == 0 {
			o.room = accountsRoom()
		}
	}
	o.pass++
	for _, g := range r.Grants {
		key := grantOn{g.ID, g.GPU}
		last, known := o.told[key]
		moved := max(g.Used, last.used) - min(g.Used, last.used)
		due := !known || moved >= max(overheadStep, g.Granted/overheadPart) || r.Taken.Sub(last.at) >= overheadRest
		if due && !r.Taken.Before(o.unread[g.ID]) {
			last.used, last.at = g.Used, r.Taken
			if err := o.tell(n.Policy.LimitsDir(g.ID), g); errors.Is(err, limits.ErrSlow) {
				o.unread[g.ID] = r.Taken.Add(slowRest)
			}
		}
		last.pass = o.pass
		o.told[key] = last
		if a := o.accounts[g.ID]; a != nil {
			a.pass = o.pass
		}
	}
	maps.DeleteFunc(o.unread, func(_ grant.ID, until time.Time) bool { return !r.Taken.Before(until) })
	for key, last := range o.told {
		if last.pass != o.pass {
			delete(o.told, key)
		}
	}
	for id, a := range o.accounts {
		if a.pass != o.pass {
			o.close(id)
		}
	}
}

// tell does nothing for a grant without records: nothing limits it, or something else than the shim does.
func (o *overheads) tell(dir string, g watch.GrantUse) error {
	a := o.accounts[g.ID]
	if a != nil && !a.Current() {
		o.close(g.ID)
		a = nil
	}
	if a == nil {
		opened, err := limits.OpenAccount(dir)
		if err != nil {
			return nil
		}
		if a = (&account{Account: opened}); len(o.accounts) < o.room {
			o.accounts[g.ID] = a
		} else {
			defer a.Close()
		}
	}
	counted, err := o.used(a.Account, g.GPU)
	if err != nil {
		return err // the container has spoiled its account; what it does not count there the watch finds
	}
	return a.SetOverhead(g.GPU, g.Used-min(g.Used, counted))
}

func (o *overheads) close(id grant.ID) {
	o.accounts[id].Close()
	delete(o.accounts, id)
}

// closeAll ends it.
func (o *overheads) closeAll() {
	for id := range o.accounts {
		o.close(id)
	}
}
