package nodeledger

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Batch serves callers that come at the same time by one reading of the ledger, and by one writing.
// A disk takes hardly longer to keep many grants than to keep one, but each caller by itself would
// wait for all before it.
type Batch struct {
	reads    combined[Ledger, reading]
	enters   combined[entry, outcome]
	opens    combined[Ledger, *node.Node]
	prepares combined[prepared, error]
}

type reading struct {
	content Content
	err     error
}

// entry is an ask with the ledger that it is for.
type entry struct {
	ledger Ledger
	ask    admission.Ask
	keeps  bool // the reference, too
}

// outcome is that of an entry.
type outcome struct {
	grants.Entered
	keepErr error // of keeping the reference of a grant that is in the ledger
}

// readAll reads once. All readings began after their callers had come.
func readAll(ledgers []Ledger) []reading {
	content, err := ledgers[0].read()
	all := make([]reading, len(ledgers))
	for i := range all {
		all[i] = reading{content, err}
	}
	return all
}

// openAll opens the node once. Its inventory is read once for all of them.
func openAll(ledgers []Ledger) []*node.Node {
	n := ledgers[0].Open()
	n.Keep()
	return slices.Repeat([]*node.Node{n}, len(ledgers))
}

// enterAll writes the references while the ledger is written: each waits for the disk. A reference
// without a grant, as a crash can leave it, opens nothing, and RemoveOrphans removes it.
func enterAll(all []entry) []outcome {
	asks, out := make([]admission.Ask, len(all)), make([]outcome, len(all))
	for i, e := range all {
		asks[i] = e.ask
	}
	var keepErr error
	keep := func(now []grants.Entered) {
		var references []grant.Reference
		for i, e := range all {
			if e.keeps && now[i].Err == nil {
				references = append(references, now[i].Reference)
			}
		}
		if keepErr = all[0].ledger.keepAll(references); keepErr != nil {
			keepErr = fmt.Errorf("cannot keep the references of grants: %w", keepErr)
		}
	}
	for i, e := range grants.EnterAll(all[0].ledger.Open(), asks, keep) {
		if out[i].Entered = e; all[i].keeps {
			out[i].keepErr = keepErr
		}
		if e.Err != nil && all[i].keeps && e.Grant.ID != "" {
			out[i].Err = errors.Join(e.Err, all[i].ledger.dropKept(e.Grant.ID))
		}
	}
	return out
}

// prepared is a grant whose files of limits are to be made, with its ledger.
type prepared struct {
	ledger Ledger
	id     grant.ID
}

func prepareAll(all []prepared) []error {
	ids := make([]grant.ID, len(all))
	for i, p := range all {
		ids[i] = p.id
	}
	return grants.PrepareAll(all[0].ledger.Open(), ids)
}

// combined runs a function for all callers that have come while it ran for those before them.
type combined[In, Out any] struct {
	mu      sync.Mutex
	waiting []*caller[In, Out]
	running bool
}

type caller[In, Out any] struct {
	in   In
	out  Out
	done chan struct{}
}

// do returns what the function gives for in.
func (c *combined[In, Out]) do(in In, function func([]In) []Out) Out {
	own := &caller[In, Out]{in: in, done: make(chan struct{})}
	c.mu.Lock()
	c.waiting = append(c.waiting, own)
	if !c.running {
		c.running = true
		go c.run(function)
	}
	c.mu.Unlock()
	<-own.done
	return own.out
}

func (c *combined[In, Out]) run(function func([]In) []Out) {
	for {
		c.mu.Lock()
		now := c.waiting
		c.waiting, c.running = nil, len(now) > 0
		c.mu.Unlock()
		if len(now) == 0 {
			return
		}
		in := make([]In, len(now))
		for i, one := range now {
			in[i] = one.in
		}
		for i, out := range function(in) {
			now[i].out = out
			close(now[i].done)
		}
	}
}
