package ledger

import (
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// TestADeletionIsFinishedLater: a grant is deleted while a container runs, and a file cannot be
// removed. The grant does not come back without its binding, and the binding goes in a later pass.
func TestADeletionIsFinishedLater(t *testing.T) {
	for _, part := range []string{"/bindings/", deletedSuffix} {
		b := newLedger(t)
		b.put(sample(1))
		b.bind(bindingOf(id(1), "c"))
		host.Simulated = failing(func(s host.Step) bool {
			return s.Kind == host.Removes && strings.Contains(s.Path, part)
		})
		err := b.Update(func(tx *Tx) error { return tx.Delete(id(1)) })
		if _, e := b.get(id(1)); err != nil || e == nil {
			t.Errorf("%s: %v, and the grant is there (%v)", part, err, e)
		}
		for range 2 {
			if report, err := b.Check(nil); err != nil || report.Sound() {
				t.Errorf("%s: the ledger is sound (%v)", part, err)
			}
		}
		host.Simulated = nil
		if report, err := b.Check(nil); err != nil || !report.Sound() || report.Bindings != 0 {
			t.Errorf("%s: later: %+v, %v", part, report, err)
		}
	}
}

// TestADraftDeletesNothing: an older copy of the state directory can have the draft of a grant that
// was made right after. Its container's binding stays.
func TestADraftDeletesNothing(t *testing.T) {
	b := newLedger(t)
	b.unsound()
	b.put(sample(1))
	b.bind(bindingOf(id(1), "c"))
	path := b.files.grants.path(id(1))
	if err := host.Rename(path, temporary(path)); err != nil {
		t.Fatal(err)
	}
	if report, err := b.Check(nil); err != nil || report.Bindings != 1 {
		t.Errorf("%+v, %v", report, err)
	}
}

// TestAGrantThatIsOverIsDeletedLater: its entry cannot be removed at first.
func TestAGrantThatIsOverIsDeletedLater(t *testing.T) {
	b := newLedger(t)
	adopted := sample(1)
	adopted.Source = grant.Asked // and it has no container
	b.put(adopted)
	host.Simulated = failing(func(s host.Step) bool {
		return s.Kind == host.Removes && strings.HasSuffix(s.Path, deletedSuffix)
	})
	err := b.Update(func(tx *Tx) error { return tx.Sweep() })
	host.Simulated = nil
	tidies := err != nil && strings.HasPrefix(err.Error(), "cannot tidy the ledger: ")
	if _, e := b.get(id(1)); e == nil || !tidies {
		t.Errorf("%v, and the grant is there (%v)", err, e)
	}
	if _, err := b.Check(nil); err != nil {
		t.Error(err)
	}
	if report, err := b.Check(nil); err != nil || len(report.Findings) > 0 {
		t.Errorf("later: %+v, %v", report, err)
	}
}

// TestABindingGoesWithAGrantThatIsOver: its container was gone when the grant was read, and another
// one has the name when the binding is.
func TestABindingGoesWithAGrantThatIsOver(t *testing.T) {
	b := newLedger(t)
	adopted := sample(1)
	adopted.Source = grant.Asked
	b.put(adopted)
	b.bind(bindingOf(id(1), "c"))
	b.update(func(tx *Tx) error {
		s, err := readSurvey(tx)
		if err != nil {
			return err
		}
		s.grants[id(1)].Bindings = nil
		if _, err := removeOverdue(tx, s, time.Now()); err != nil {
			return err
		}
		_, err = repairAll(tx, s)
		return err
	})
	report, err := b.Check(nil)
	if err != nil || len(report.Findings) > 0 || report.Grants+report.Bindings != 0 {
		t.Errorf("%+v, %v", report, err)
	}
}
