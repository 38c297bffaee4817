package node

import (
	"errors"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
)

// maxTries bounds how often the ledger or the inventory may change between a plan and its commit.
// Each change means that another process got on, so many containers at once need few tries.
const maxTries = 32

// bind plans, and commits a plan that admits. The binding is recorded before anything is done with
// it. It returns the facts that it has decided by, too.
func bind(n *Node, f *createFacts) (Decision, *createFacts) {
	var view grant.View
	var refused *Decision
	for range maxTries {
		if f, refused = renewed(n, f); refused != nil {
			return *refused, f
		}
		f, view = readLedger(n, f)
		p := planned(f, view)
		if p.Kind != grant.Admit {
			return p.Decision, f
		}
		f = withCgroups(n, f)
		examineOwn(n, f.Container)
		d, settled, err := commit(n, f, p)
		if err != nil {
			return *cannotBind(f.Container, err), f
		}
		if settled {
			failpoint.Hit("node/bound")
			return listed(f, d), f
		}
	}
	return *refusal(grant.LedgerUnreadable, tooManyChanges, f.Container.Name(), maxTries), f
}

const tooManyChanges = "cannot bind the grant of container %q: the ledger or the inventory changed %d " +
	"times meanwhile"

func cannotBind(c grant.Container, err error) *Decision {
	return refusal(grant.LedgerUnreadable, "cannot bind the grant of container %q: %v", c.Name(), err)
}

// examineOwn finds out what became of the container's own binding, before the ledger is locked. The
// binding may be of another grant than the one that was looked at.
func examineOwn(n *Node, c grant.Container) {
	_, _ = n.Ledger.Bindings.Of(c.RuntimeRoot, c.ID)
}

// commit locks the ledger, decides again, and binds if the decision is as planned, so that of two
// containers with one grant one is refused. It returns the decision as it is now. It is not settled
// if other edits are needed than were planned, facts that were not read, or a newer inventory.
func commit(n *Node, f *createFacts, p plan) (d Decision, settled bool, err error) {
	err = n.Ledger.Update(func(tx *ledger.Tx) error {
		view, err := lastingView(n, tx, f)
		if err != nil {
			return err
		}
		if !f.suffice(view) || f.outdated(n) {
			return nil
		}
		if d = decide(f, view); !d.Touches() {
			settled = true
			return nil
		}
		if !sameEdits(d.Verdict, p.Verdict) || p.sound(f, view) != nil {
			return nil
		}
		settled = true
		d.Config, d.Close, d.Others = p.Config, p.Close, p.Others
		return bindLocked(n, tx, f, &d)
	})
	return d, settled, err
}

// bindLocked records the binding of an admission, or refuses: another container has the id, or
// something else is in the cgroup.
func bindLocked(n *Node, tx *ledger.Tx, f *createFacts, d *Decision) error {
	if f.Live != nil {
		return bindLive(n, tx, f, d)
	}
	if n.Ledger.Containers.Life(f.Container.RuntimeRoot, f.Container.ID) != grant.Dead {
		// Nothing can be bound: the binding would live with that container. And it may end before
		// the real runtime looks, which would then start this one without a binding.
		*d = *inUse(f.Container)
		return nil
	}
	held, err := heldID(tx, f.Container)
	if err != nil {
		return err
	}
	if held != nil {
		*d = *held
		return nil
	}
	if f.cgroups.crowded || tx.Bindings.Occupied(f.cgroups.possible, f.isOwn, f.mayBeBelow) {
		*d = *sharedCgroup(f)
		return nil
	}
	self, err := n.Host.Self()
	if err != nil {
		return err
	}
	// This process becomes the real runtime by exec, so it is the container's creator; or it
	// reserves.
	return record(n, tx, f, d, self)
}

// inUse refuses in runc's words, which engines know (libcontainer's ErrExist).
func inUse(c grant.Container) *Decision {
	r := refusal(grant.GrantInUse, "container with given ID already exists: %q", c.ID)
	r.Hint = "delete that container first"
	return r
}

// record enters the grant if it is adopted, and records its binding in place of what was reserved
// for the container.
func record(n *Node, tx *ledger.Tx, f *createFacts, d *Decision, creator grant.Process) error {
	if d.Grant.ID == "" {
		g, err := enter(n, tx, *d.Grant, f.fresh)
		if err != nil {
			return err
		}
		d.Grant = &g
	}
	if d.Limited {
		if err := limitfiles.Write(n.Policy, *d.Grant); err != nil {
			dropOrphan(n, tx, d.Grant.ID)
			*d = *unlimitable(f.Container, err)
			return nil
		}
		failpoint.Hit("node/limited")
	}
	tx.DropDead(d.Grant.ID)
	d.Bound = true
	b := grant.Binding{Grant: d.Grant.ID, RuntimeRoot: f.Container.RuntimeRoot, Container: f.Container.ID,
		Bundle: f.Container.Bundle, Creator: creator, Cgroups: f.cgroups.known,
		Occupies: f.cgroups.possible,
		Unplaced: f.request.Cgroup == "",
		Pod:      bounded(f.pod()), Strength: d.Strength, Weaker: cut(d.Weaker, maxText), Driven: d.Driven,
		Throttled: d.Throttled, Reserved: f.Reserve}
	// in this order: the container may run already, with its reservation as the only binding
	if err := tx.Bind(b); err != nil {
		dropOrphan(n, tx, d.Grant.ID)
		return err
	}
	_ = tx.DropReserved(d.Grant.ID, f.Container.ID, &b) // what is left ends with its creator
	return nil
}

// heldID refuses if a container of the same id is bound that the runtime does not know, and that
// has not ended. It may be about to exist: the real runtime cannot refuse that one, so both would
// start, one of them without a binding. Or it has processes left, which use its grant.
func heldID(tx *ledger.Tx, c grant.Container) (*Decision, error) {
	b, err := tx.Bindings.Of(c.RuntimeRoot, c.ID)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case b.Life == grant.Dead || b.Reserved:
		return nil, nil
	case b.Life == grant.LifeUnknown:
		return refusal(grant.GrantInUse, "cannot tell whether the earlier container of the id %q has ended",
			c.ID), nil
	case b.Left:
		r := refusal(grant.GrantInUse, "processes of the earlier container of the id %q are left in its "+
			"cgroup %s", c.ID, grant.Printable(strings.Join(b.Cgroups, ", ")))
		r.Hint = "end those processes: cgroup.procs lists them, in that cgroup and in those below it"
		return r, nil
	}
	return refusal(grant.GrantInUse, "another container of the id %q is being created", c.ID), nil
}

// bindLive binds the grant to a container that the runtime has made. If the wrapper did so at the
// beginning of this create, its binding stands: it names the same process, or for crun, which
// forks, that process's parent.
func bindLive(n *Node, tx *ledger.Tx, f *createFacts, d *Decision) error {
	if f.Live.Unknown != nil {
		return f.Live.Unknown
	}
	b, err := tx.Bindings.Of(f.Container.RuntimeRoot, f.Container.ID)
	// this container is in the cgroup of the one before it, and so in one with what is left of that
	if b.Left {
		more := *f
		more.cgroups.known = append(slices.Clone(f.cgroups.known), b.Cgroups...)
		slices.Sort(more.cgroups.known)
		more.cgroups.known, b.Life = slices.Compact(more.cgroups.known), grant.Dead
		f = &more
	}
	switch {
	case errors.Is(err, ledger.ErrNotFound):
	case err != nil:
		return err
	case b.Reserved: // for this very create, before which the engine asked
	case b.Life != grant.Dead && !slices.Contains(f.Live.Creators, b.Creator):
		*d = *refusal(grant.GrantInUse, "another container of the id %q is there", f.Container.ID)
		return nil
	case b.Life != grant.Dead && b.Grant == d.Grant.ID:
		d.Known = true
		return nil
	}
	return record(n, tx, f, d, f.Live.Creators[0])
}

// Unbind takes a binding back whose container did not come to be.
func (n *Node) Unbind(c grant.Container) error {
	return n.Ledger.Update(func(tx *ledger.Tx) error { return unbind(n, tx, c.RuntimeRoot, c.ID) })
}
