package grants

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Change is a change of a live grant. A nil field stays as it is.
type Change struct {
	Memory  *grant.Bytes   // over all of its GPUs
	Compute *int           // 0: no share any more
	TTL     *time.Duration // from now; 0: for ever
}

// Update grows or shrinks a grant where it is. Its containers are limited to the new size from
// their next allocation on. Errors are those of Enter, and *grant.NotFoundError.
func Update(n *node.Node, id grant.ID, c Change) (grant.Grant, error) {
	return updateOf(n, id, c, 0, nil)
}

// UpdateOf is Update for a user of the node, who has a quota. What takes more than before is judged
// by the quota as a new grant would be. A grant of another user is *grant.NotFoundError, as one
// that does not exist.
func UpdateOf(n *node.Node, id grant.ID, c Change, user uint32, q grant.Quota) (grant.Grant, error) {
	return updateOf(n, id, c, user, &q)
}

// updateOf is Update for root without a quota, and for a user with one.
func updateOf(n *node.Node, id grant.ID, c Change, user uint32, q *grant.Quota) (grant.Grant, error) {
	var g grant.Grant
	if n.Broken != nil {
		return g, n.Broken
	}
	read := func(tx *ledger.Tx) (err error) {
		if g, err = get(tx, id); q != nil {
			err = onlyOf(user, id, g, err)
		}
		return err
	}
	if c.Memory != nil {
		if err := n.Ledger.View(read); err != nil {
			return g, err
		}
		if err := rehearse(n, id); err != nil {
			return g, err
		}
	}
	err := n.Ledger.Update(func(tx *ledger.Tx) error {
		v, inv, err := readForPlacement(n, tx)
		if err != nil {
			return err
		}
		if err := read(tx); err != nil {
			return err
		}
		if g.Draining || g.Expired(v.Now) {
			return &grant.NotFoundError{Message: fmt.Sprintf("cannot change grant %s: its time is over", id)}
		}
		before := g
		if g, err = changed(n, before, c, q, v, inv); err != nil {
			return err
		}
		return putLimited(n, tx, before, g)
	})
	return withStrength(n, g), err
}

// changed gives the grant as it would be. A grant that does not grow needs no free memory: its GPU
// may be over-full by now, and then to shrink grants is the way out.
func changed(n *node.Node, g grant.Grant, c Change, q *grant.Quota, v grant.View,
	inv grant.Inventory) (grant.Grant, error) {
	memory, compute := g.Memory(), g.Compute
	g.GPUs = slices.Clone(g.GPUs)
	longer := c.TTL != nil && lastsLonger(g.Expires, *c.TTL, v.Now)
	if err := apply(&g, c, v.Now); err != nil {
		return g, err
	}
	ask := askOf(g)
	ask.User, ask.Quota = g.User, q
	if longer { // Place below is not asked if nothing but the time grows
		if err := ask.WithinQuota(g.GPUs, g.ID, v); err != nil {
			return g, noLonger(err)
		}
	}
	if g.Memory() <= memory && g.Compute <= compute {
		if c.Compute != nil { // what is asked for anew is what can be kept
			if err := ask.Keepable(inv, n.Policy); err != nil {
				return g, err
			}
		}
		return g, divide(&g)
	}
	var err error
	g.GPUs, err = admission.Place(ask, g.ID, v, inv, n.Policy)
	return g, err
}

// noLonger says of a quota's refusal what is refused: the grant stays as it is.
func noLonger(err error) error {
	var r *grant.Refusal
	if !errors.As(err, &r) {
		return err
	}
	return &grant.Refusal{Code: r.Code, Message: "cannot make the grant last longer: " + r.Message,
		Hint: "it stays until its time is over; ask for a shorter time (--ttl), or release others first"}
}

// lastsLonger reports whether a grant that expires (zero: never) would last longer with a new time
// (0: for ever) from now.
func lastsLonger(expires time.Time, ttl time.Duration, now time.Time) bool {
	return !expires.IsZero() && (ttl == 0 || now.Add(ttl).After(expires))
}

// putLimited replaces a grant, and what its containers are limited to: by the shim, by the driver,
// or each by one of them. A crash in between leaves a limit that is too small, which the next pass
// over the ledger corrects.
func putLimited(n *node.Node, tx *ledger.Tx, before, after grant.Grant) error {
	l, err := limitfiles.Open(n.Policy, before)
	if err != nil {
		return err
	}
	if l != nil {
		defer l.Close()
	}
	if err := checkClients(before, after, l != nil); err != nil {
		return err
	}
	put := func() error { return tx.Put(after) }
	if driven(before) {
		put = func() error { return putDriven(n, tx, before, after) }
	}
	if l == nil {
		return put()
	}
	share := admission.ThrottlePercent(before, n.Policy)
	if err := l.Set(limitfiles.Smaller(before.GPUs, after.GPUs), share); err != nil {
		return err
	}
	failpoint.Hit("node/limit-lowered")
	if err := put(); err != nil {
		// The grant is as before, unless the disk has failed twice. If it cannot be read, the limit
		// stays small.
		if stands, e := tx.Entry(before.ID); e == nil {
			err = errors.Join(err, l.Set(stands.GPUs, share))
		}
		return err
	}
	failpoint.Hit("node/grant-changed")
	return l.Set(after.GPUs, admission.ThrottlePercent(after, n.Policy))
}

// checkClients refuses to make a grant in mode mps smaller while containers use it. The servers
// have the limits of the largest grant, and a container has its own in its environment, which stays
// as it is while the container runs. Where the shim limits the memory, too, the memory may shrink.
func checkClients(before, after grant.Grant, shim bool) error {
	const all = 100 // percent, without a share
	less := cmp.Or(after.Compute, all) < cmp.Or(before.Compute, all) ||
		!shim && !slices.Equal(limitfiles.Smaller(before.GPUs, after.GPUs), before.GPUs)
	if before.Mode != grant.MPS || len(before.Bindings) == 0 || !less {
		return nil
	}
	var ids []string
	for _, b := range before.Bindings {
		ids = append(ids, grant.Printable(b.Container))
	}
	return &grant.Refusal{Code: grant.GrantInUse,
		Message: fmt.Sprintf("cannot make grant %s smaller: in mode mps its containers keep what they have "+
			"until they end: %s", before.ID, strings.Join(ids, ", ")),
		Hint: "end these containers first, or release the grant and make another one"}
}

func apply(g *grant.Grant, c Change, now time.Time) error {
	if c.Memory != nil {
		switch g.Mode {
		case grant.Exclusive:
			return &grant.UsageError{
				Message: "cannot change the memory of an exclusive grant: it has all of its GPUs"}
		case grant.MIG:
			return &grant.UsageError{
				Message: "cannot change the memory of a grant in mode mig: it has all of its MIG devices"}
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
	if err := ask.Validate(); err != nil || g.Mode.IsWhole() {
		return err
	}
	for i := range g.GPUs {
		g.GPUs[i].Memory = ask.Memory / grant.Bytes(len(g.GPUs))
	}
	return nil
}

// askOf gives the request that the grant answers: for its own GPUs and its own size.
func askOf(g grant.Grant) admission.Ask {
	ask := admission.Ask{Compute: g.Compute, Mode: g.Mode, Owner: g.Owner}
	if !g.Expires.IsZero() {
		ask.TTL = g.Expires.Sub(g.Created)
	}
	if !g.Mode.IsWhole() {
		ask.Memory = g.Memory()
	}
	for _, s := range g.GPUs {
		ask.Names = append(ask.Names, s.UUID)
	}
	return ask
}
