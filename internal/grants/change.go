package grants

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Enter enters a new grant. The reference with its secret is given this one time; the ledger keeps a hash. Errors are
// those of admission.Place, *grant.Refusal with GrantInUse when the owner has a live grant, and *grant.Refusal with the
// inventory's problem.
func Enter(n *node.Node, ask admission.Ask) (grant.Grant, grant.Reference, error) {
	if n.Broken != nil {
		return grant.Grant{}, grant.Reference{}, n.Broken
	}
	if err := checkTies(n, ask.For); err != nil {
		return grant.Grant{}, grant.Reference{}, err
	}
	g, reference, err := node.NewGrant(n, ask)
	if err != nil {
		return grant.Grant{}, grant.Reference{}, err
	}
	err = n.Ledger.Update(func(tx *ledger.Tx) error {
		v, inv, err := readForPlacement(n, tx)
		if err != nil {
			return err
		}
		if err := onlyOne(ask.Owner, v); err != nil {
			return err
		}
		if g.GPUs, err = admission.Place(ask, "", v, inv, n.Policy); err != nil {
			return err
		}
		return tx.Put(g)
	})
	return withStrength(n, g), reference, err
}

// withStrength is a grant as people are told of it: with what holds its containers to it here and now.
func withStrength(n *node.Node, g grant.Grant) grant.Grant {
	inv, _ := n.Inventory()
	g.Strength, g.ComputeStrength = admission.Strength(g, inv, n.Policy), admission.ComputeStrength(g, inv, n.Policy)
	return g
}

// onlyOne refuses a second live grant of an owner by name.
func onlyOne(owner grant.Owner, v grant.View) error {
	if owner == grant.Bearer {
		return nil
	}
	i := slices.IndexFunc(v.Grants, func(g grant.Grant) bool { return g.Owner == owner && g.Live(v.Now) })
	if i < 0 {
		return nil
	}
	return &grant.Refusal{Code: grant.GrantInUse, Message: fmt.Sprintf("cannot grant: %s holds grant %s already", owner, v.Grants[i].ID),
		Hint: fmt.Sprintf("change that one with `gpuledger grant --update %s`, or release it", v.Grants[i].ID)}
}

// readForPlacement reads all that a placement needs, after sweeping out what is dead.
func readForPlacement(n *node.Node, tx *ledger.Tx) (grant.View, grant.Inventory, error) {
	inv, problem := n.Inventory()
	if problem != nil {
		return grant.View{}, inv, &grant.Refusal{Code: problem.Code, Message: problem.Message, Hint: problem.Hint}
	}
	if err := limitfiles.Sweep(n.Policy, n.Host.Now(), tx); err != nil {
		return grant.View{}, inv, err
	}
	v, err := tx.Whole(n.Host.Now())
	return v, inv, err
}

// Change is what may be changed of a live grant. A nil field stays as it is.
type Change struct {
	Memory  *grant.Bytes   // over all of its GPUs
	Compute *int           // 0: no share any more
	TTL     *time.Duration // from now; 0: for ever
}

// Update grows or shrinks a grant where it is. Its containers are limited to the new size from their next allocation on. Errors
// are those of Enter, and *grant.NotFoundError.
func Update(n *node.Node, id grant.ID, c Change) (grant.Grant, error) {
	var g grant.Grant
	if n.Broken != nil {
		return g, n.Broken
	}
	if c.Memory != nil {
		if err := rehearse(n, id); err != nil {
			return g, err
		}
	}
	err := n.Ledger.Update(func(tx *ledger.Tx) error {
		v, inv, err := readForPlacement(n, tx)
		if err != nil {
			return err
		}
		if g, err = get(tx, id); err != nil {
			return err
		}
		if g.Draining || g.Expired(v.Now) {
			return &grant.NotFoundError{Message: fmt.Sprintf("cannot change grant %s: its time is over", id)}
		}
		before := g
		if g, err = changed(n, before, c, v, inv); err != nil {
			return err
		}
		return putLimited(n, tx, before, g)
	})
	return withStrength(n, g), err
}

// changed is a grant as it would be. What does not grow needs no room: a GPU may be over-full by now, and this the way out.
func changed(n *node.Node, g grant.Grant, c Change, v grant.View, inv grant.Inventory) (grant.Grant, error) {
	memory, compute := g.Memory(), g.Compute
	g.GPUs = slices.Clone(g.GPUs)
	if err := apply(&g, c, v.Now); err != nil {
		return g, err
	}
	if g.Memory() <= memory && g.Compute <= compute {
		if c.Compute != nil { // what is asked for anew is what can be kept
			if err := askOf(g).Keepable(inv, n.Policy); err != nil {
				return g, err
			}
		}
		return g, divide(&g)
	}
	var err error
	g.GPUs, err = admission.Place(askOf(g), g.ID, v, inv, n.Policy)
	return g, err
}

// putLimited replaces a grant, and what its containers are limited to. A crash in between leaves a limit that is too small; the
// next pass over the ledger puts it right.
func putLimited(n *node.Node, tx *ledger.Tx, before, after grant.Grant) error {
	if driven(before) {
		return putDriven(n, tx, before, after)
	}
	l, err := limitfiles.Open(n.Policy, before)
	if err != nil {
		return err
	}
	if l == nil {
		return tx.Put(after)
	}
	defer l.Close()
	share := admission.Share(before, n.Policy)
	if err := l.Set(limitfiles.Smaller(before.GPUs, after.GPUs), share); err != nil {
		return err
	}
	failpoint.Hit("node/limit-lowered")
	if err := tx.Put(after); err != nil {
		return errors.Join(err, l.Set(before.GPUs, share))
	}
	failpoint.Hit("node/grant-changed")
	return l.Set(after.GPUs, admission.Share(after, n.Policy))
}

func apply(g *grant.Grant, c Change, now time.Time) error {
	if c.Memory != nil {
		switch g.Mode {
		case grant.Exclusive:
			return &grant.UsageError{Message: "cannot change the memory of an exclusive grant: it has all of its GPUs"}
		case grant.MIG:
			return &grant.UsageError{Message: "cannot change the memory of a grant in mode mig: it has all of its MIG devices"}
		}
		for i := range g.GPUs {
			g.GPUs[i].Memory = 0 // Place divides the whole anew
		}
		g.GPUs[0].Memory = *c.Memory
	}
	if c.Compute != nil {
		g.Compute = *c.Compute
	}
	if c.TTL != nil {
		g.Expires = time.Time{}
		if *c.TTL > 0 {
			g.Expires = now.UTC().Truncate(time.Millisecond).Add(*c.TTL)
		}
	}
	return nil
}

// divide spreads a grant's memory over its GPUs.
func divide(g *grant.Grant) error {
	ask := askOf(*g)
	if err := ask.Validate(); err != nil || g.Mode == grant.Exclusive || g.Mode == grant.MIG {
		return err
	}
	for i := range g.GPUs {
		g.GPUs[i].Memory = ask.Memory / grant.Bytes(len(g.GPUs))
	}
	return nil
}

// askOf is the question that a grant answers: its own GPUs, its own size.
func askOf(g grant.Grant) admission.Ask {
	ask := admission.Ask{Compute: g.Compute, Mode: g.Mode, Owner: g.Owner}
	if g.Mode != grant.Exclusive && g.Mode != grant.MIG {
		ask.Memory = g.Memory()
	}
	for _, s := range g.GPUs {
		ask.Names = append(ask.Names, s.UUID)
	}
	return ask
}

// Release gives a grant up. One that a container uses is draining then: it counts until the container is gone, unless
// forced. The grant is returned as it was left: one that is draining is in the ledger still. *grant.NotFoundError if there is none.
func Release(n *node.Node, id grant.ID, force bool) (grant.Grant, error) {
	var g grant.Grant
	err := n.Ledger.Update(func(tx *ledger.Tx) error {
		var err error
		if g, err = get(tx, id); err != nil {
			var damaged *ledger.DamagedError
			if force && errors.As(err, &damaged) {
				return removeGrant(n, tx, id)
			}
			return err
		}
		g.Draining = len(g.Bindings) > 0 && !force
		if !g.Draining {
			return removeGrant(n, tx, id)
		}
		return tx.Put(g)
	})
	return g, err
}

// removeGrant removes a grant and what was kept for it. A container that uses it by force keeps its limit; one that is still being created does not
// start where the driver was to limit it (Drive).
func removeGrant(n *node.Node, tx *ledger.Tx, id grant.ID) error {
	err := tx.Delete(id)
	if err == nil {
		limitfiles.Remove(n.Policy, id)
	}
	return err
}

func get(tx *ledger.Tx, id grant.ID) (grant.Grant, error) {
	g, err := tx.Get(id)
	if errors.Is(err, ledger.ErrNotFound) {
		return g, &grant.NotFoundError{Message: fmt.Sprintf("the ledger has no grant %s", id)}
	}
	return g, err
}

// Overview is the whole ledger beside the inventory, as a reader finds it.
type Overview struct {
	grant.View
	Inventory grant.Inventory
	Problem   *grant.Problem // of the inventory
}

// Read reads everything without waiting for a writer. Grants that no longer count are left out.
func Read(n *node.Node) (Overview, error) {
	return read(n, func(tx *ledger.Tx) (grant.View, error) { return tx.Whole(n.Host.Now()) })
}

// ReadAgain gives an overview with the same grants and bindings, for who knows that they are as they were: the rest of it is read anew, and is
// little.
func ReadAgain(n *node.Node, o Overview) (Overview, error) {
	return read(n, func(tx *ledger.Tx) (v grant.View, err error) {
		v = grant.View{Now: n.Host.Now(), Grants: slices.Clone(o.Grants), Damaged: o.Damaged}
		v.Outside, err = tx.Outside()
		return v, err
	})
}

func read(n *node.Node, from func(*ledger.Tx) (grant.View, error)) (o Overview, err error) {
	o.Inventory, o.Problem = n.Inventory()
	err = n.Ledger.View(func(tx *ledger.Tx) (err error) {
		o.View, err = from(tx)
		return err
	})
	o.Grants = slices.DeleteFunc(o.Grants, func(g grant.Grant) bool { return !g.Live(o.Now) })
	for i := range o.Grants {
		g := &o.Grants[i]
		g.Strength, g.ComputeStrength = admission.Strength(*g, o.Inventory, n.Policy), admission.ComputeStrength(*g, o.Inventory, n.Policy)
	}
	return o, err
}

// Check verifies the ledger and repairs what is derived.
func Check(n *node.Node) (ledger.Report, error) { return verified(n, n.Ledger.Check) }

func verified(n *node.Node, verify func(*grant.Inventory, grant.Bytes) (ledger.Report, error)) (ledger.Report, error) {
	inv, problem := n.Inventory()
	known, reserve := &inv, grant.Bytes(n.Policy.Rules.Reserve)
	if problem != nil {
		known, reserve = nil, 0
	}
	report, err := verify(known, reserve)
	if err == nil {
		var findings []ledger.Finding
		findings, err = SettleLimits(n)
		report.Findings = append(report.Findings, findings...)
	}
	return report, err
}
