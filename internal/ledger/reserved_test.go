package ledger

import (
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

func reservation(id grant.ID, container, root string) grant.Binding {
	b := bindingOf(id, container)
	b.Reserved, b.RuntimeRoot = true, root
	return b
}

// TestDropReserved drops the reservations of a container's id, whatever their root, and nothing
// else.
func TestDropReserved(t *testing.T) {
	b := newLedger(t)
	one, two := sample(1), sample(2)
	b.put(one, two)
	b.bind(reservation(one.ID, "c", "/run/a"), reservation(two.ID, "c", "/run/b"),
		reservation(one.ID, "other", "/run/a"), bindingOf(two.ID, "c"))
	drop := func(id grant.ID) {
		b.update(func(tx *Tx) error { return tx.DropReserved(id, "c", nil) })
	}
	drop(one.ID)
	if got, also := b.usedBy(one.ID), b.usedBy(two.ID); got != "other" || also != "c c" {
		t.Errorf("of the first grant %q are left and of the second %q, want %q and %q", got, also, "other",
			"c c")
	}
	drop("")
	if got, also := b.usedBy(one.ID), b.usedBy(two.ID); got != "other" || also != "c" {
		t.Errorf("of the first grant %q are left and of the second %q, want %q and %q", got, also, "other",
			"c")
	}
	kept := reservation(one.ID, "d", "/run/a")
	b.bind(kept, reservation(one.ID, "d", "/run/b"))
	b.update(func(tx *Tx) error { return tx.DropReserved(one.ID, "d", &kept) })
	if got := b.usedBy(one.ID); got != "d other" {
		t.Errorf("%q are left, want the binding that stays", got)
	}
	if got, err := b.binding("c"); err != nil || got.Reserved {
		t.Errorf("the container's own binding reads %+v (%v)", got, err)
	}
}

// TestAReservationEndsWithItsHolder: no other process could end it.
func TestAReservationEndsWithItsHolder(t *testing.T) {
	b := newLedger(t)
	g := sample(1)
	b.put(g)
	dead := deadBinding(g.ID, "c")
	dead.Reserved = true
	b.bind(dead)
	if got := b.usedBy(g.ID); got != "" {
		t.Errorf("the grant is held for %q by a process that is gone", got)
	}
	b.bind(reservation(g.ID, "c", dead.RuntimeRoot))
	if got, err := b.binding("c"); err != nil || !got.Reserved || got.Life != grant.Alive {
		t.Errorf("got %+v (%v), want it reserved and alive", got, err)
	}
}
