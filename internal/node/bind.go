package node

import (
	"errors"
	"reflect"
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// maxTries bounds how often the ledger may change between an edit and its binding. Whoever changes it gets on by that, so
// that many containers at once need few.
const maxTries = 32

// bind decides, and where that is an admission decides again with the ledger locked, so that of two containers with one
// grant one is refused. The binding is recorded before anything is done with it.
//
// What a tenant chooses is read before the lock is taken: its paths may lead into a file system that answers never, and who
// waits for that cannot be killed. With the lock held, values are compared.
func (v visit) bind() Decision {
	for try := range maxTries {
		planned := v.look(v.decide)
		if planned.Kind != grant.Admit {
			return planned
		}
		if try == 0 {
			v.inCgroups()
			v.examineOwn()
		}
		d, settled, err := v.bindAs(planned)
		if err != nil {
			return *refusal(grant.LedgerUnreadable, "cannot bind the grant of container %q: %v", v.Container.Name(), err)
		}
		if settled {
			failpoint.Hit("node/bound")
			return d
		}
	}
	return *refusal(grant.LedgerUnreadable, "cannot bind the grant of container %q: the ledger changed %d times meanwhile", v.Container.Name(), maxTries)
}

// examineOwn finds out what became of the container's own binding, before the ledger is locked: it may be of another grant than the one that
// was looked at.
func (v visit) examineOwn() {
	_ = v.Ledger.View(func(tx *ledger.Tx) error {
		_, err := tx.Binding(v.Container.RuntimeRoot, v.Container.ID)
		return err
	})
}

// bindAs binds if the decision is what it was when it was planned, and gives it as it is now. It is not settled where other
// edits are needed than were planned.
func (v visit) bindAs(planned Decision) (d Decision, settled bool, err error) {
	err = v.Ledger.Update(func(tx *ledger.Tx) error {
		view := v.withWhole(tx, v.view(tx, v.request))
		if d = v.judge(view); !d.Touches() {
			settled = true
			return nil
		}
		inv, problems := v.inventoryFor(view)
		view.Problems = problems
		if !sameEdits(d.Verdict, planned.Verdict) || v.sound(planned, view, inv) != nil {
			return nil
		}
		settled = true
		d.Config, d.Devices, d.Others = planned.Config, planned.Devices, planned.Others
		return v.enlist(tx, &d)
	})
	return d, settled, err
}

// sameEdits reports whether two verdicts change a spec in the same way.
func sameEdits(a, b grant.Verdict) bool {
	mounts := slices.EqualFunc(a.Edits.Mounts, b.Edits.Mounts, func(a, b *cdispec.Mount) bool {
		return a.HostPath == b.HostPath && a.ContainerPath == b.ContainerPath && a.Type == b.Type && slices.Equal(a.Options, b.Options)
	})
	nodes := slices.EqualFunc(a.Edits.DeviceNodes, b.Edits.DeviceNodes, func(a, b *cdispec.DeviceNode) bool {
		x, y := *a, *b
		x.FileMode, y.FileMode, x.UID, y.UID, x.GID, y.GID = nil, nil, nil, nil, nil, nil
		return x == y && same(a.FileMode, b.FileMode) && same(a.UID, b.UID) && same(a.GID, b.GID)
	})
	// Of both there are tens: comparing them by reflection is a tenth of a millisecond.
	a.Edits.Mounts, b.Edits.Mounts, a.Edits.DeviceNodes, b.Edits.DeviceNodes = nil, nil, nil, nil
	return mounts && nodes && a.Kind == b.Kind && a.Narrow == b.Narrow && slices.Equal(a.Rules, b.Rules) && slices.Equal(a.Removed, b.Removed) &&
		slices.Equal(a.Masked, b.Masked) && reflect.DeepEqual(a.Edits, b.Edits)
}

// same compares what pointers lead to.
func same[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// enlist records the binding of an admission, unless the id is another container's.
func (v visit) enlist(tx *ledger.Tx, d *Decision) error {
	if v.Live != nil {
		return v.bindLive(tx, d)
	}
	if v.Ledger.ContainerLife(v.Container.RuntimeRoot, v.Container.ID) != grant.Dead {
		// Nothing can be bound: the binding would live with that container. And it may end before the real runtime looks, which
		// would start this one unbound then.
		*d = *inUse(v.Container)
		return nil
	}
	creating, err := v.creating(tx)
	if creating {
		*d = *refusal(grant.GrantInUse, "another container of the id %q is being created", v.Container.ID)
	}
	if creating || err != nil {
		return err
	}
	if v.crowded || tx.Occupied(v.occupies, v.isOwn, v.mayBeBelow) {
		*d = *v.crowdedCgroup(d.pod)
		return nil
	}
	self, err := v.Host.Self()
	if err != nil {
		return err
	}
	// This process becomes the real runtime by exec, so it is the container's creator; or it reserves.
	return v.use(tx, d, self)
}

// inUse refuses as runc does, whose words engines know (libcontainer's ErrExist).
func inUse(c grant.Container) *Decision {
	r := refusal(grant.GrantInUse, "container with given ID already exists: %q", c.ID)
	r.Hint = "delete that container first"
	return r
}

// use enters the grant where it is adopted, and records its binding in place of what was reserved for the container.
func (v visit) use(tx *ledger.Tx, d *Decision, creator grant.Process) error {
	if d.Grant.ID == "" {
		g, err := v.enter(tx, *d.Grant)
		if err != nil {
			return err
		}
		d.Grant = &g
	}
	if d.Limited {
		if err := v.limit(*d.Grant); err != nil {
			v.dropOrphan(tx, d.Grant.ID)
			*d = *unlimitable(v.Container, err)
			return nil
		}
		failpoint.Hit("node/limited")
	}
	tx.DropDead(d.Grant.ID)
	tx.DropReserved(d.Grant.ID, v.Container.ID)
	d.Bound = true
	err := tx.Bind(grant.Binding{Grant: d.Grant.ID, RuntimeRoot: v.Container.RuntimeRoot, Container: v.Container.ID, Bundle: v.Container.Bundle,
		Creator: creator, Cgroups: v.cgroups, Occupies: v.occupies, Pod: bounded(d.pod), Strength: d.Strength, Weaker: cut(d.Weaker, maxText),
		Driven: d.Driven, Throttled: d.Throttled, Reserved: v.Reserve})
	if err != nil {
		v.dropOrphan(tx, d.Grant.ID)
	}
	return err
}

// creating reports whether a container of the same id is about to be: bound, and not there yet. The real runtime cannot
// refuse that one, so both would start, and one of them unbound.
func (v visit) creating(tx *ledger.Tx) (bool, error) {
	b, err := tx.Binding(v.Container.RuntimeRoot, v.Container.ID)
	if errors.Is(err, ledger.ErrNotFound) {
		return false, nil
	}
	return b.Life != grant.Dead && !b.Reserved, err
}

// Unbind takes a binding back whose container did not come to be.
func (n *Node) Unbind(c grant.Container) error {
	return n.Ledger.Update(func(tx *ledger.Tx) error { return n.unbind(tx, c.RuntimeRoot, c.ID) })
}
