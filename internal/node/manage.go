package node

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// Grant enters a new grant. The reference with its secret is given this one time; the ledger keeps a hash. Errors are
// those of admission.Place, *grant.Refusal with GrantInUse when the owner has a live grant, and *grant.Refusal with the
// inventory's problem.
func (n *Node) Grant(ask admission.Ask) (grant.Grant, grant.Reference, error) {
	if n.Broken != nil {
		return grant.Grant{}, grant.Reference{}, n.Broken
	}
	if err := checkTies(n, ask.For); err != nil {
		return grant.Grant{}, grant.Reference{}, err
	}
	g, reference, err := newGrant(n, ask)
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
func withStrength(n *Node, g grant.Grant) grant.Grant {
	inv, _ := n.Inventory()
	g.Strength, g.ComputeStrength = admission.Strength(g, inv, n.Policy), admission.ComputeStrength(g, inv, n.Policy)
	return g
}

// newGrant is the grant that is asked for, before it has its GPUs.
func newGrant(n *Node, ask admission.Ask) (grant.Grant, grant.Reference, error) {
	random, err := host.Random()
	if err != nil {
		return grant.Grant{}, grant.Reference{}, err
	}
	g := grant.Grant{ID: grant.NewID(random), Owner: ask.Owner, Label: ask.Label, Mode: ask.Mode, Strength: admission.StrengthOf(ask.Mode),
		Compute: ask.Compute, Source: ask.Source, Created: n.Host.Now().UTC().Truncate(time.Millisecond), For: ask.For}
	if ask.TTL > 0 {
		g.Expires = g.Created.Add(ask.TTL)
	}
	reference := grant.Reference{ID: g.ID}
	if ask.Owner.HasSecret() {
		if random, err = host.Random(); err != nil {
			return grant.Grant{}, grant.Reference{}, err
		}
		reference.Secret = grant.NewSecret(random)
		g.Secret = grant.SecretHash(reference.Secret)
	}
	return g, reference, nil
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
func readForPlacement(n *Node, tx *ledger.Tx) (grant.View, grant.Inventory, error) {
	inv, problem := n.Inventory()
	if problem != nil {
		return grant.View{}, inv, &grant.Refusal{Code: problem.Code, Message: problem.Message, Hint: problem.Hint}
	}
	if err := sweep(n, tx); err != nil {
		return grant.View{}, inv, err
	}
	v, err := allGrants(n, tx)
	return v, inv, err
}

// allGrants is a view of every grant.
func allGrants(n *Node, tx *ledger.Tx) (grant.View, error) {
	v := grant.View{Now: n.Host.Now()}
	var err error
	if v.Grants, v.Damaged, err = tx.All(); err != nil {
		return v, err
	}
	if v.Outside, err = tx.Outside(); err == nil {
		v.Held, err = tx.Held()
	}
	return v, err
}

// Change is what may be changed of a live grant. A nil field stays as it is.
type Change struct {
	Memory  *grant.Bytes   // over all of its GPUs
	Compute *int           // 0: no share any more
	TTL     *time.Duration // from now; 0: for ever
}

// Change grows or shrinks a grant where it is. Its containers are limited to the new size from their next allocation on. Errors
// are those of Grant, and *grant.NotFoundError.
func (n *Node) Change(id grant.ID, c Change) (grant.Grant, error) {
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
func changed(n *Node, g grant.Grant, c Change, v grant.View, inv grant.Inventory) (grant.Grant, error) {
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
func putLimited(n *Node, tx *ledger.Tx, before, after grant.Grant) error {
	if driven(before) {
		return putDriven(n, tx, before, after)
	}
	l, err := openLimits(n, before)
	if err != nil {
		return err
	}
	if l == nil {
		return tx.Put(after)
	}
	defer l.Close()
	share := admission.Share(before, n.Policy)
	if err := l.Set(smaller(before.GPUs, after.GPUs), share); err != nil {
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
func (n *Node) Release(id grant.ID, force bool) (grant.Grant, error) {
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
func removeGrant(n *Node, tx *ledger.Tx, id grant.ID) error {
	err := tx.Delete(id)
	if err == nil {
		removeLimits(n, id)
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

// Overview reads everything without waiting for a writer. Grants that no longer count are left out.
func (n *Node) Overview() (Overview, error) {
	return overview(n, func(tx *ledger.Tx) (grant.View, error) { return allGrants(n, tx) })
}

// OverviewAgain is an overview with the same grants and bindings, for who knows that they are as they were: the rest of it is read anew, and is
// little.
func (n *Node) OverviewAgain(o Overview) (Overview, error) {
	return overview(n, func(tx *ledger.Tx) (v grant.View, err error) {
		v = grant.View{Now: n.Host.Now(), Grants: slices.Clone(o.Grants), Damaged: o.Damaged}
		v.Outside, err = tx.Outside()
		return v, err
	})
}

func overview(n *Node, read func(*ledger.Tx) (grant.View, error)) (o Overview, err error) {
	o.Inventory, o.Problem = n.Inventory()
	err = n.Ledger.View(func(tx *ledger.Tx) (err error) {
		o.View, err = read(tx)
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
func (n *Node) Check() (ledger.Report, error) { return verified(n, n.Ledger.Check) }

func verified(n *Node, verify func(*grant.Inventory, grant.Bytes) (ledger.Report, error)) (ledger.Report, error) {
	inv, problem := n.Inventory()
	known, reserve := &inv, grant.Bytes(n.Policy.Rules.Reserve)
	if problem != nil {
		known, reserve = nil, 0
	}
	report, err := verify(known, reserve)
	if err == nil {
		var findings []ledger.Finding
		findings, err = n.SettleLimits()
		report.Findings = append(report.Findings, findings...)
	}
	return report, err
}

// Tidy removes a container's binding where it is dead already: at its delete, and before another one of its id starts. It
// waits for the lock no longer than tidyWait and never fails: what is left is found dead by whoever looks next. It returns
// the bundle of what it removed.
func (n *Node) Tidy(runtimeRoot, container string) (bundle string) {
	if !n.Ledger.HasBinding(runtimeRoot, container) {
		return ""
	}
	quick, until, driven := *n.Ledger, time.Now().Add(tidyWait), false
	quick.Wait = tidyWait
	_ = quick.Update(func(tx *ledger.Tx) error {
		b, err := tx.Binding(runtimeRoot, container)
		if err != nil || b.Life != grant.Dead {
			return err
		}
		bundle, driven = b.Bundle, b.Driven
		return unbind(n, tx, runtimeRoot, container)
	})
	if driven {
		undrive(n, runtimeRoot, container, time.Until(until))
	}
	return bundle
}

// tidyWait is how long a delete or a create may be held up.
const tidyWait = 100 * time.Millisecond
