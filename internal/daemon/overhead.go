package daemon

import (
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// overheads tell the shim of each grant how much its containers use beyond what their processes count themselves: contexts, code,
// memory that they had in other ways. It counts against the grant at the next allocation.
type overheads struct{ told map[grantOn]overhead }

type grantOn struct {
	id  grant.ID
	gpu string
}

type overhead struct {
	used grant.Bytes // in truth, when it was last told
	at   time.Time
}

// How much the truth has to change, and how old it may get, before the account is read again: that is up to 200 KiB and a thousand
// locks to ask for, of each grant. What is less than a hundredth of a grant can wait for the few seconds.
const (
	overheadStep = 2 * grant.MiB
	overheadPart = 100
	overheadRest = 5 * time.Second
)

// publish brings the records up to date of the grants that have some.
func (o *overheads) publish(n *node.Node, r watch.Report) {
	told := make(map[grantOn]overhead, len(r.Grants))
	for _, g := range r.Grants {
		key := grantOn{g.ID, g.GPU}
		last, known := o.told[key]
		if moved := max(g.Used, last.used) - min(g.Used, last.used); known && moved < max(overheadStep, g.Granted/overheadPart) && r.Taken.Sub(last.at) < overheadRest {
			told[key] = last
			continue
		}
		told[key] = overhead{g.Used, r.Taken}
		publishOverhead(n.Policy.LimitsDir(g.ID), g)
	}
	o.told = told
}

// publishOverhead does nothing for a grant without records: nothing limits it, or something else than the shim does.
func publishOverhead(dir string, g watch.GrantUse) {
	l, err := limits.Open(dir)
	if err != nil {
		return
	}
	defer l.Close()
	counted, err := l.Used(g.GPU)
	if err != nil {
		return // the container has spoiled its account; what it does not count there the watch finds
	}
	_ = l.SetOverhead(g.GPU, g.Used-min(g.Used, counted))
}
