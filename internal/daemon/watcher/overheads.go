package watcher

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// overheadWriter writes for the shim of each grant how much its containers use beyond what their
// processes count: contexts, code, and memory allocated in other ways. It counts against the grant
// at the next allocation.
type overheadWriter struct {
	written  map[grantGPU]writtenOverhead
	accounts map[grant.ID]*openAccount
	slow     map[grant.ID]time.Time // when reading the account was found to be slow
	idle     map[grant.ID]bool      // without a process on one of its GPUs, and not reset yet
	used     func(*limits.Account, string) (sum grant.Bytes, processes int, err error)
	maxOpen  int // how many are kept open; the others are opened in every pass, which is slow
	pass     int
	contexts limits.Contexts // the least that a context was seen to take
}

// openAccount holds a grant's files, open.
type openAccount struct {
	*limits.Account
	pass int // in which the grant was last used
}

// maxAccounts is how many accounts may be open. Each needs a descriptor, of which they may have an
// eighth (two host.ExitWatcher take half of them), and a mapping, of which the kernel allows 65,530
// (vm.max_map_count).
func maxAccounts() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur/8, 1<<14))
}

// grantGPU identifies a grant on one GPU.
type grantGPU struct {
	id  grant.ID
	gpu string
}

// writtenOverhead is what was written for a grant last.
type writtenOverhead struct {
	used, counted grant.Bytes // measured and read from the account, when it was written last
	overhead      grant.Bytes
	context       grant.Bytes // that each counted context counts
	processes     int         // that the driver lists
	counting      int         // those with something in the account
	settled       bool        // neither had changed since the time before
	steady        bool        // as settled, but the use may have changed by less than a step
	at            time.Time
	pass          int // in which the grant was last used
}

// next returns what was written, with the overhead that follows from what the driver measured and
// from the account. The account is read some milliseconds after the measurement, and a program can
// allocate gigabytes in that time. What was counted when it was measured is assumed to lie between
// the last reading of the account and this one: the overhead changes only if both require it.
// Before the first reading, nothing was counted.
func (last writtenOverhead) next(used, counted grant.Bytes) writtenOverhead {
	before := last.counted
	least, most := used-min(used, max(before, counted)), used-min(used, min(before, counted))
	last.overhead = min(max(last.overhead, least), most)
	last.settled = before == counted && used == last.used && !last.at.IsZero()
	last.used, last.counted = used, counted
	return last
}

// How much the use has to change, and how old the record may get, before the account is read again.
// Reading takes up to 200 KiB and a thousand locks for each grant. A change of less than a
// hundredth of a grant is written some seconds later.
const (
	overheadStep  = 2 * grant.MiB
	overheadPart  = 100
	overheadEvery = 5 * time.Second
	slowEvery     = time.Minute // for an account that its container has made slow to read
)

// update writes the records of the grants that have some.
func (o *overheadWriter) update(n *node.Node, r watch.Comparison) {
	first := o.written == nil
	if first {
		o.written, o.accounts = map[grantGPU]writtenOverhead{}, map[grant.ID]*openAccount{}
		o.slow, o.idle = map[grant.ID]time.Time{}, map[grant.ID]bool{}
		if o.contexts = limits.ReadContexts(n.Policy.ContextsFile()); o.contexts == nil {
			o.contexts = limits.Contexts{}
		}
		if o.used == nil {
			o.used = (*limits.Account).Used
		}
		if o.maxOpen == 0 {
			o.maxOpen = maxAccounts()
		}
	}
	o.pass++
	learned := false
	// after the clock was set back, times that were noted are in the future
	maps.DeleteFunc(o.slow, func(_ grant.ID, at time.Time) bool {
		return r.Taken.Sub(at).Abs() >= slowEvery
	})
	for _, g := range r.Grants {
		key := grantGPU{g.ID, g.GPU}
		last, known := o.written[key]
		used := g.Used + g.Unlisted
		moved := max(used, last.used) - min(used, last.used)
		calm := known && moved < max(overheadStep, g.Granted/overheadPart)
		due := !last.steady || !calm || r.Taken.Sub(last.at).Abs() >= overheadEvery
		if _, slow := o.slow[g.ID]; due && !slow {
			written, err := o.write(n.Policy.LimitsDir(g.ID), g, last)
			if err == nil {
				written.steady = calm && written.counted == last.counted
				last = written
				learned = o.learn(g.GPU, last) || learned
			} else if errors.Is(err, limits.ErrSlow) {
				o.slow[g.ID] = r.Taken
			}
			last.used, last.at = used, r.Taken
		}
		last.pass = o.pass
		o.written[key] = last
		if a := o.accounts[g.ID]; a != nil {
			a.pass = o.pass
		}
	}
	if learned { // if this write fails, the next change writes the file
		_ = o.contexts.Save(n.Policy.ContextsFile())
	}
	if first || learned {
		for _, name := range limits.Kept(n.Policy.LimitsRoot()) {
			o.idle[grant.ID(name)] = true
		}
	}
	for key, last := range o.written {
		if last.pass != o.pass {
			o.idle[key.id] = true
			delete(o.written, key)
		}
	}
	o.reset(n, r)
	for id, a := range o.accounts {
		if a.pass != o.pass {
			o.close(id)
		}
	}
}

// reset prepares the files of grants for their next process: on a GPU without one, nothing is in
// use beside allocations. What a context counts does not change while a process of the grant runs:
// learn compares what its contexts have counted. While a GPU of a grant does not answer, the
// processes there are not known, and the grant is reset later.
func (o *overheadWriter) reset(n *node.Node, r watch.Comparison) {
	for id := range o.idle {
		a, err := limits.OpenAccount(n.Policy.LimitsDir(id))
		if errors.Is(err, fs.ErrNotExist) { // the grant is over
			delete(o.idle, id)
		}
		if err != nil {
			continue
		}
		isSilent := func(g watch.GPUUse) bool { return g.Total == 0 && a.Has(g.UUID) }
		if !slices.ContainsFunc(r.GPUs, isSilent) {
			o.resetIdle(id, a, r)
			delete(o.idle, id)
		}
		a.Close()
	}
}

func (o *overheadWriter) resetIdle(id grant.ID, a *limits.Account, r watch.Comparison) {
	if !slices.ContainsFunc(r.Grants, func(g watch.GrantUse) bool { return g.ID == id }) {
		a.Reset(o.contexts)
		return
	}
	for _, g := range r.GPUs {
		if _, used := o.written[grantGPU{id, g.UUID}]; !used && a.Has(g.UUID) {
			_ = a.SetOverhead(g.UUID, 0) // no other error than that it has no such GPU
		}
	}
}

// leastContext is less than any context takes, in bytes.
const leastContext = 16 * grant.MiB

// knownPart: a decrease of less than this part is ignored.
const knownPart = 32

// learn takes for a context what a process has beyond its allocations, if that is less than what is
// known. Two measurements have to agree: a context that is being made has a part of its memory.
func (o *overheadWriter) learn(gpu string, last writtenOverhead) bool {
	if last.processes == 0 || !last.settled || last.counting > last.processes {
		return false
	}
	beyond := (int64(last.used) - int64(last.counted)) / int64(last.processes) // the count
	each := min(int64(last.context)+beyond, int64(limits.MaxContext))
	known, isKnown := o.contexts[gpu]
	if each < int64(leastContext) || isKnown && each >= int64(known-known/knownPart) {
		return false
	}
	o.contexts[gpu] = grant.Bytes(each)
	return true
}

// write does nothing for a grant without records: the shim does not limit it.
func (o *overheadWriter) write(dir string, g watch.GrantUse, last writtenOverhead) (writtenOverhead, error) {
	a := o.accounts[g.ID]
	if a != nil && !a.Current() {
		o.close(g.ID)
		a = nil
	}
	if a == nil {
		opened, err := limits.OpenAccount(dir)
		if err != nil {
			return last, nil
		}
		if a = (&openAccount{Account: opened}); len(o.accounts) < o.maxOpen {
			o.accounts[g.ID] = a
		} else {
			defer a.Close()
		}
	}
	counted, counting, err := o.used(a.Account, g.GPU)
	if err != nil {
		return last, err // the container has damaged its account; the watch finds what it uses
	}
	if last.overhead, last.context, err = a.Published(g.GPU); err != nil {
		return last, err
	}
	last.processes, last.counting = g.Processes, counting
	last = last.next(g.Used+g.Unlisted, counted)
	return last, a.SetOverhead(g.GPU, last.overhead)
}

func (o *overheadWriter) close(id grant.ID) {
	o.accounts[id].Close()
	delete(o.accounts, id)
}

// closeAll closes all accounts.
func (o *overheadWriter) closeAll() {
	for id := range o.accounts {
		o.close(id)
	}
}
