package grants

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Enter enters a new grant. It returns the reference with its secret this one time: the ledger
// keeps only a hash. Errors are those of admission.Place, *grant.Refusal with GrantInUse if the
// owner has a live grant, and *grant.Refusal with the inventory's problem.
func Enter(n *node.Node, ask admission.Ask) (grant.Grant, grant.Reference, error) {
	if n.Broken != nil {
		return grant.Grant{}, grant.Reference{}, n.Broken
	}
	if err := checkTies(n, ask.For); err != nil {
		return grant.Grant{}, grant.Reference{}, err
	}
	g, reference, err := node.NewGrant(ask)
	if err != nil {
		return grant.Grant{}, grant.Reference{}, err
	}
	err = n.Ledger.Update(func(tx *ledger.Tx) error {
		v, inv, err := readForPlacement(n, tx)
		if err != nil {
			return err
		}
		if err := onlyOne(tx, ask.Owner, v); err != nil {
			return err
		}
		if err := place(&g, n, ask, v, inv); err != nil {
			return err
		}
		return tx.Put(g)
	})
	return withStrength(n, g), reference, err
}

// Entered is the outcome of one of several asks.
type Entered struct {
	Grant     grant.Grant
	Reference grant.Reference
	Err       error
	// why the files of the grant's limits could not be made; the grant is in the ledger
	Unprepared error
}

// EnterAll enters a grant for each ask, in this order, with one writing of the ledger. An ask that
// is refused does not keep the others from their grants. If the ledger cannot be written, there is
// none of them. meanwhile, unless it is nil, runs while the ledger is written, with the outcomes so
// far: grants without an error may still fail. The files of limits are made, as by Prepare, before
// the ledger is unlocked.
func EnterAll(n *node.Node, asks []admission.Ask, meanwhile func([]Entered)) []Entered {
	all := make([]Entered, len(asks))
	if n.Broken != nil { // it may have the ledger of the defaults
		for i := range all {
			all[i].Err = n.Broken
		}
		return all
	}
	for i, ask := range asks {
		e := &all[i]
		if e.Err = checkTies(n, ask.For); e.Err == nil {
			e.Grant, e.Reference, e.Err = node.NewGrant(ask)
		}
	}
	err := n.Ledger.Update(func(tx *ledger.Tx) error {
		v, inv, err := readForPlacement(n, tx)
		if err != nil {
			return err
		}
		var placed []grant.Grant
		for i, ask := range asks {
			e := &all[i]
			if e.Err == nil {
				e.Err = onlyOne(tx, ask.Owner, v)
			}
			if e.Err == nil {
				e.Err = place(&e.Grant, n, ask, v, inv)
			}
			if e.Err == nil {
				placed, v.Grants = append(placed, e.Grant), append(v.Grants, e.Grant)
			}
		}
		var beside sync.WaitGroup
		if meanwhile != nil {
			beside.Go(func() { meanwhile(all) })
		}
		err = tx.PutNew(placed)
		beside.Wait()
		if err != nil {
			return err
		}
		for i := range all {
			if all[i].Err == nil {
				all[i].Unprepared = prepare(n, all[i].Grant, inv)
			}
		}
		return nil
	})
	inv, _ := n.Inventory()
	for i := range all {
		if all[i].Err == nil {
			all[i].Err = err
		}
		all[i].Grant = strengthened(n, inv, all[i].Grant)
	}
	return all
}

// place gives a new grant its GPUs. Its time begins at the placement: a time that began while the
// caller waited for the ledger could be over by then, and the grant would not count for the next of
// several.
func place(g *grant.Grant, n *node.Node, ask admission.Ask, v grant.View, inv grant.Inventory) (err error) {
	g.Begin(v.Now, ask.TTL)
	g.GPUs, err = admission.Place(ask, "", v, inv, n.Policy)
	return err
}

// withStrength adds to a grant what holds its containers to it on this node now.
func withStrength(n *node.Node, g grant.Grant) grant.Grant {
	inv, _ := n.Inventory()
	return strengthened(n, inv, g)
}

func strengthened(n *node.Node, inv grant.Inventory, g grant.Grant) grant.Grant {
	g.Strength = admission.Strength(g, inv, n.Policy)
	g.ComputeStrength = admission.ComputeStrength(g, inv, n.Policy)
	return g
}

// onlyOne refuses a second live grant of an owner by name. An entry that cannot be read may be the
// owner's, too: the link from the owner says so.
func onlyOne(tx *ledger.Tx, owner grant.Owner, v grant.View) error {
	if owner == grant.Bearer {
		return nil
	}
	for _, g := range v.Grants {
		if g.Owner == owner && g.Live(v.Now) {
			return holds(owner, g.ID)
		}
	}
	if len(v.Damaged) == 0 {
		return nil
	}
	g, err := tx.ByOwner(owner)
	var damage *ledger.DamagedError
	switch {
	case errors.As(err, &damage):
		return &grant.Refusal{Code: grant.LedgerUnreadable,
			Message: fmt.Sprintf("cannot grant: %s has grant %s, which cannot be read: %s", owner, damage.ID,
				damage.Err),
			Hint: "`gpuledger check` says what is wrong with it"}
	case errors.Is(err, ledger.ErrNotFound):
		return nil
	case err == nil && g.Live(v.Now): // it can be read by now
		return holds(owner, g.ID)
	}
	return err
}

func holds(owner grant.Owner, id grant.ID) error {
	return &grant.Refusal{Code: grant.GrantInUse,
		Message: fmt.Sprintf("cannot grant: %s holds grant %s already", owner, id),
		Hint:    fmt.Sprintf("change that one with `gpuledger grant --update %s`, or release it", id)}
}

// readForPlacement removes what is over, and returns all that a placement needs. It reads the
// ledger once: every grant that waits for the lock waits for that.
func readForPlacement(n *node.Node, tx *ledger.Tx) (grant.View, grant.Inventory, error) {
	inv, problem := n.Inventory()
	if problem != nil {
		return grant.View{}, inv, problem.Refusal()
	}
	v, err := limitfiles.Sweep(n.Policy, tx)
	return v, inv, err
}
