package ledger

import (
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

func TestManyNewGrants(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	var many []grant.Grant
	for i := 2; i < 40; i++ {
		many = append(many, sample(i))
	}
	b.update(func(tx *Tx) error { return tx.PutNew(many) })
	if all, damaged := b.all(); len(all) != 39 || len(damaged) > 0 {
		t.Errorf("there are %d grants and %v is damaged, want 39", len(all), damaged)
	}
	for _, g := range many {
		if found, err := b.byOwner(g.Owner); err != nil || found.ID != g.ID {
			t.Errorf("%s has %s (%v), want %s", g.Owner, found.ID, err, g.ID)
		}
	}
	before := b.tree()
	err := b.Update(func(tx *Tx) error { return tx.PutNew([]grant.Grant{sample(40), sample(1)}) })
	if err == nil || !strings.Contains(err.Error(), "there is one") || b.tree() != before {
		t.Errorf("one that exists: %v, the ledger was\n%s\nand is\n%s", err, before, b.tree())
	}
	if err := b.View(func(tx *Tx) error { return tx.PutNew(many) }); err != errReadOnly {
		t.Errorf("without the lock: %v", err)
	}
	b.update(func(tx *Tx) error { return tx.PutNew(nil) })
}
