package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// bindingOf is a binding that is alive: the test is its creator, and runs.
func bindingOf(id grant.ID, container string) grant.Binding {
	self, err := host.Default().Self()
	if err != nil {
		panic(err)
	}
	return grant.Binding{Grant: id, RuntimeRoot: "/run/gpuledger-test-no-such-root", Container: container,
		Bundle: "/b", Creator: self}
}

// deadBinding has a creator that cannot be: no process starts with the kernel. It is alive while a
// process of the node is in a cgroup of the container's name.
func deadBinding(id grant.ID, container string) grant.Binding {
	b := bindingOf(id, container)
	b.Creator.Start = 1
	return b
}

func (b *testLedger) bind(bindings ...grant.Binding) {
	b.t.Helper()
	b.update(func(tx *Tx) error {
		for _, binding := range bindings {
			if err := tx.Bind(binding); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *testLedger) binding(container string) (got grant.Binding, err error) {
	root := bindingOf("", "").RuntimeRoot
	err = b.View(func(tx *Tx) (err error) { got, err = tx.Bindings.Of(root, container); return err })
	return got, err
}

// usedBy names the containers that use the grant, as Get reports them.
func (b *testLedger) usedBy(id grant.ID) string {
	b.t.Helper()
	g, err := b.get(id)
	if err != nil {
		b.t.Fatal(err)
	}
	var names []string
	for _, binding := range g.Bindings {
		names = append(names, binding.Container)
	}
	return strings.Join(names, " ")
}

func TestBindThenUnbind(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	want := bindingOf(id(1), "c")
	b.bind(want)
	want.BootID, _ = b.Host.BootID()
	want.PIDNS, _ = b.Host.PIDNamespace()
	want.TimeNS, _ = b.Host.TimeNamespace()
	want.Created, want.Life = noon, grant.Alive
	if got, err := b.binding("c"); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Binding:\n got %+v (%v)\nwant %+v", got, err, want)
	}
	if g, err := b.get(id(1)); err != nil || !reflect.DeepEqual(g.Bindings, []grant.Binding{want}) {
		t.Errorf("Get: %+v, %v", g.Bindings, err)
	}
	if grants, _ := b.all(); !reflect.DeepEqual(grants[0].Bindings, []grant.Binding{want}) {
		t.Errorf("All: %+v", grants)
	}
	root := want.RuntimeRoot
	if !b.Bindings.Has(root, "c") || !b.Bindings.Has(root+"/", "c") || b.Bindings.Has(root, "d") ||
		b.Bindings.Has("/other", "c") {
		t.Error("HasBinding is wrong about which container it is")
	}
	for range 2 { // the second time there is nothing to do
		b.update(func(tx *Tx) error { return tx.Unbind(root, "c") })
		if _, err := b.binding("c"); !errors.Is(err, ErrNotFound) || b.Bindings.Has(root, "c") ||
			b.usedBy(id(1)) != "" {
			t.Errorf("after Unbind: %v", err)
		}
	}
	if strings.Contains(b.tree(), "/run/grants/") || strings.Contains(b.tree(), "/run/bindings/") {
		t.Errorf("Unbind left:\n%s", b.tree())
	}
}

// A container that is gone may have passed the reference on.
func TestAGrantIsKnownAsUsedUntilItIsGone(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1), sample(2), sample(3), sample(4))
	used := func(when string, want ...int) {
		t.Helper()
		for n := 1; n <= 4; n++ {
			if got := b.Bindings.Used(id(n)); got != slices.Contains(want, n) {
				t.Errorf("%s: grant %d has been used: %v", when, n, got)
			}
		}
	}
	used("at first")
	b.bind(bindingOf(id(1), "c"), deadBinding(id(2), "d"), bindingOf(id(3), "e"))
	used("while they are bound", 1, 2, 3)
	b.update(func(tx *Tx) error { return tx.Unbind(bindingOf("", "").RuntimeRoot, "c") })
	b.bind(bindingOf(id(4), "e")) // another container of that id
	b.update(func(tx *Tx) error { tx.DropDead(id(2)); return nil })
	used("when the containers are gone", 1, 2, 3, 4)
	b.update(func(tx *Tx) error { return tx.Sweep() })
	used("after a sweep", 1, 2, 3, 4)
	b.update(func(tx *Tx) error { return tx.Delete(id(1)) })
	used("when a grant is released", 2, 3, 4)
	over := sample(2)
	over.Draining = true
	b.put(over)
	b.update(func(tx *Tx) error { return tx.Sweep() })
	used("when one is swept out", 3, 4)
	b.put(sample(1))
	used("when one of its id is made anew", 3, 4)
}

func TestAContainerHasOneBinding(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1), sample(2))
	b.bind(bindingOf(id(1), "c"), bindingOf(id(1), "c"), bindingOf(id(1), "d"), bindingOf(id(2), "c"))
	if one, two := b.usedBy(id(1)), b.usedBy(id(2)); one != "d" || two != "c" {
		t.Errorf("grant 1 is used by %q, grant 2 by %q; want d and c", one, two)
	}
}

func TestBindRefusesAContainerThatIsAPath(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	for _, container := range []string{"", ".", "..", "a/b", "../x", "a\x00b"} {
		if err := b.Update(func(tx *Tx) error { return tx.Bind(bindingOf(id(1), container)) }); err == nil {
			t.Errorf("Bind of container %q: no error", container)
		}
	}
	relative := bindingOf(id(1), "c")
	relative.RuntimeRoot = "run"
	if err := b.Update(func(tx *Tx) error { return tx.Bind(relative) }); err == nil {
		t.Error("Bind under a relative runtime root: no error")
	}
	b.bind(bindingOf(id(1), "a..b")) // runc takes such ids
}

// TestBindNeedsAGrantThatExists, also if the grant was read just before it was deleted.
func TestBindNeedsAGrantThatExists(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1), sample(2))
	for name, bind := range map[string]func(*Tx) error{
		"no grant":           func(tx *Tx) error { return tx.Bind(bindingOf("", "c")) },
		"one that never was": func(tx *Tx) error { return tx.Bind(bindingOf(id(3), "c")) },
		"another than is read": func(tx *Tx) error {
			_, err := tx.Get(id(1))
			return errors.Join(err, tx.Bind(bindingOf(id(3), "c")))
		},
		"one that was just deleted": func(tx *Tx) error {
			_, err := tx.Get(id(2))
			return errors.Join(err, tx.Delete(id(2)), tx.Bind(bindingOf(id(2), "c")))
		},
	} {
		if err := b.Update(bind); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if names, _ := namesIn(b.files.bindings.byGrant); len(names) != 0 {
		t.Errorf("left behind: %q", names)
	}
}

func TestDeleteRemovesTheBindings(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1), sample(2))
	b.bind(bindingOf(id(1), "c"), bindingOf(id(1), "d"), bindingOf(id(2), "e"))
	b.update(func(tx *Tx) error { return tx.Delete(id(1)) })
	if _, err := b.binding("c"); !errors.Is(err, ErrNotFound) {
		t.Errorf("binding of a deleted grant: %v", err)
	}
	b.put(sample(1))
	if b.usedBy(id(1)) != "" || b.usedBy(id(2)) != "e" {
		t.Error("a new grant of the id has the old one's bindings, or another lost its own")
	}
}

func TestABindingThatCannotBeReadIsUnknownUntilReleasedByForce(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "garbage": "{", "newer": `{"version":2}`,
		"another's": `{"version":1,"grant":"g-aaaaaaaaaaab","runtime_root":"/x","container":"y"}`,
	} {
		b := newLedger(t)
		b.put(sample(1))
		b.bind(bindingOf(id(1), "c"))
		path := b.files.bindings.path(bindingKey(bindingOf("", "").RuntimeRoot, "c"))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		g, err := b.get(id(1))
		if err != nil || g.State(b.now) != grant.Unknown {
			t.Errorf("%s: state %s (%v), want unknown", name, g.State(b.now), err)
		}
		if _, err := b.binding("c"); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("%s: Binding: %v, want an error other than ErrNotFound", name, err)
		}
		if report, _ := b.Check(nil); report.Sound() {
			t.Errorf("%s: Check finds it sound", name)
		}
		b.update(func(tx *Tx) error { return tx.Delete(id(1)) })
	}
}

func TestABindingWithoutRecordOrLinkDoesNoHarm(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	b.bind(bindingOf(id(1), "fileless"), bindingOf(id(1), "linkless"), bindingOf(id(1), "whole"))
	root := bindingOf("", "").RuntimeRoot
	err := errors.Join(os.Remove(b.files.bindings.path(bindingKey(root, "fileless"))),
		os.Remove(filepath.Join(b.files.bindings.linksOf(id(1)), bindingKey(root, "linkless"))))
	if err != nil {
		t.Fatal(err)
	}
	if got := b.usedBy(id(1)); got != "whole" {
		t.Errorf("bindings: %q", got)
	}
	b.update(func(tx *Tx) error { return tx.Sweep() })
	if got := b.usedBy(id(1)); !strings.Contains(got, "linkless") || strings.Contains(got, "fileless") {
		t.Errorf("after Sweep: %q, want the link back", got)
	}
}

func TestReconcileTidiesAndReports(t *testing.T) {
	b := newLedger(t)
	released, adopted, kept := sample(1), sample(2), sample(3)
	released.Draining = true
	adopted.Source = grant.Adopted
	b.put(released, adopted, kept)
	b.bind(deadBinding(id(1), "gone"), deadBinding(id(3), "gone too"), bindingOf(id(3), "here"))
	dead := func() (names []string) {
		_ = b.View(func(tx *Tx) error {
			for _, d := range tx.Bindings.Dead() {
				names = append(names, d.Container)
			}
			return nil
		})
		slices.Sort(names)
		return names
	}
	if got := dead(); !slices.Equal(got, []string{"gone", "gone too"}) {
		t.Errorf("dead are %q", got)
	}
	for _, findings := range []int{4, 0} { // two grants and two bindings, then nothing
		report, err := b.Reconcile(nil)
		over := slices.DeleteFunc(slices.Clone(report.Findings), func(f Finding) bool {
			return !strings.Contains(f.Problem, "is over") && !strings.Contains(f.Problem, "is gone") ||
				strings.Contains(f.Problem, "link")
		})
		if err != nil || !report.Sound() || report.Grants != 1 || report.Bindings != 1 ||
			len(over) != findings {
			t.Errorf("want %d things tidied: %+v (%v)", findings, report, err)
		}
	}
	if got := dead(); len(got) != 0 {
		t.Errorf("still dead: %q", got)
	}
	if got := b.usedBy(id(3)); got != "here" {
		t.Errorf("the grant that is used has %q", got)
	}
}

func TestSweepRemovesWhatIsOver(t *testing.T) {
	b := newLedger(t)
	free, expired, old, oldBound, draining, drainingBound := sample(1), sample(2), sample(3), sample(4),
		sample(5), sample(6)
	expired.Expires = noon.Add(time.Hour)
	old.Expires, oldBound.Expires = noon.Add(-time.Hour), noon.Add(-time.Hour)
	draining.Draining, drainingBound.Draining = true, true
	b.put(free, expired, old, oldBound, draining, drainingBound)
	b.bind(bindingOf(id(4), "c4"), deadBinding(id(5), "ended"), bindingOf(id(6), "c6"),
		deadBinding(id(1), "ended-too"))
	sweep := func() { // a placement counts by what it returns
		b.update(func(tx *Tx) error {
			left, err := tx.Swept()
			whole, readErr := tx.Whole(b.now)
			if got, want := fmt.Sprintf("%+v", left), fmt.Sprintf("%+v", whole); got != want {
				t.Errorf("what is left is returned as\n%s\nand the ledger has\n%s", got, want)
			}
			return errors.Join(err, readErr)
		})
	}
	b.now = noon.Add(23 * time.Hour)
	sweep()
	b.wantIDs(1, 2, 4, 6)
	b.now = noon.Add(26 * time.Hour)
	sweep()
	b.wantIDs(1, 4, 6)
	if b.Bindings.Has(bindingOf("", "").RuntimeRoot, "ended-too") {
		t.Error("a dead binding is still there")
	}
	if report, err := b.Check(nil); err != nil || len(report.Findings) != 0 {
		t.Errorf("Check after Sweep finds %+v (%v)", report.Findings, err)
	}
}

func (b *testLedger) wantIDs(numbers ...int) {
	b.t.Helper()
	grants, _ := b.all()
	var got, want []grant.ID
	for _, g := range grants {
		got = append(got, g.ID)
	}
	for _, n := range numbers {
		want = append(want, id(n))
	}
	if !reflect.DeepEqual(got, want) {
		b.t.Errorf("grants %v, want %v", got, want)
	}
}

// TestDropDead: of the bindings of a grant, DropDead keeps those that are alive, however many
// containers were never deleted.
func TestBindingsIn(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	mine, other := bindingOf(id(1), "c"), bindingOf(id(1), "c")
	other.RuntimeRoot, other.Bundle = "/run/other", "/another"
	b.bind(mine)
	b.bind(other)
	b.bind(bindingOf(id(1), "d"))
	if err := os.WriteFile(b.files.bindings.path(strings.Repeat("a", 32)), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := b.View(func(tx *Tx) error {
		if got := tx.Bindings.RootsOf("c", mine.Bundle); len(got) != 1 || got[0] != mine.RuntimeRoot {
			t.Errorf("got %q", got)
		}
		if got := tx.Bindings.RootsOf("c", "/nowhere"); len(got) != 0 {
			t.Errorf("got %q", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDropDead(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	for _, container := range []string{"first", "second", "third"} {
		b.bind(deadBinding(id(1), container))
	}
	b.bind(bindingOf(id(1), "living"))
	b.update(func(tx *Tx) error { tx.DropDead(id(1)); return nil })
	names, err := os.ReadDir(b.files.bindings.records)
	if err != nil || len(names) != 1 {
		t.Errorf("%d bindings are kept (%v), want the living one", len(names), err)
	}
}
