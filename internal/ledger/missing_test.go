package ledger

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestAMissingGrantIsDamage: the state directory is an older copy, without the grants of some
// containers. Only those name their GPUs. So they count as entries that cannot be read, for a
// placement and in a listing, until they are given up by force. One whose container has ended does
// not count.
func TestAMissingGrantIsDamage(t *testing.T) {
	b := newLedger(t)
	b.unsound()
	b.put(sample(1))
	b.put(sample(2))
	b.put(sample(3))
	b.put(sample(4))
	b.bind(bindingOf(id(1), "c1"), bindingOf(id(1), "c2"), bindingOf(id(2), "c3"), deadBinding(id(4), "past"),
		bindingOf(id(3), "c5"))
	for _, missing := range []grant.ID{id(1), id(2), id(4)} {
		if err := os.Remove(b.files.grants.path(missing)); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(b.State + "/gpus"); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string, want ...grant.ID) {
		t.Helper()
		for name, read := range map[string]func(tx *Tx) (grant.View, error){
			"placement": (*Tx).Swept,
			"listing":   func(tx *Tx) (grant.View, error) { return tx.Whole(time.Now()) }} {
			var v grant.View
			err := b.Update(func(tx *Tx) (err error) { v, err = read(tx); return err })
			var ids []grant.ID
			for _, d := range v.Damaged {
				if ids = append(ids, d.ID); len(d.GPUs) > 0 || d.Err == "" {
					t.Errorf("%s, %s: %+v", when, name, d)
				}
			}
			if err != nil || !slices.Equal(ids, want) || len(v.Grants) != 1 {
				t.Errorf("%s, %s: damaged are %v (%v), want %v", when, name, ids, err, want)
			}
		}
	}
	want("the grants are missing", id(1), id(2))
	remove := func() error { return b.Update(func(tx *Tx) error { return tx.Delete(id(1)) }) }
	if err := remove(); err != nil {
		t.Error(err)
	}
	if err := remove(); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	want("one is given up", id(2))
}

// TestADeletedGrantIsNotMissing while its bindings are removed.
func TestADeletedGrantIsNotMissing(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	b.bind(bindingOf(id(1), "c1"))
	path := b.files.grants.path(id(1))
	if err := os.Rename(path, deleted(path)); err != nil {
		t.Fatal(err)
	}
	err := b.View(func(tx *Tx) error {
		v, err := tx.Whole(time.Now())
		if len(v.Damaged) > 0 {
			t.Errorf("damaged are %+v", v.Damaged)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
