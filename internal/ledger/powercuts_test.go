package ledger

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// powerCuts watches what a power cut could take or bring back: names of grants and their links,
// until their directories are synced. It makes one step fail, or all from that one on.
type powerCuts struct {
	t        *testing.T
	b        *testLedger
	unsynced map[string]bool
	steps    int // before the one that fails
	all      bool
	failed   bool
	isNew    bool // the name that a step gives
}

func watchPowerCuts(t *testing.T, b *testLedger, steps int, all bool) *powerCuts {
	p := &powerCuts{t: t, b: b, unsynced: map[string]bool{}, steps: steps, all: all}
	host.Simulated = p
	t.Cleanup(func() { host.Simulated = nil })
	return p
}

func (p *powerCuts) Random() (r [16]byte) { return r }

func (p *powerCuts) Before(s host.Step) error {
	ours := strings.HasPrefix(s.Path, filepath.Dir(p.b.State))
	if !ours || s.Kind == host.TakesLock || s.Kind == host.GivesLock {
		return nil
	}
	if p.steps--; p.steps == -1 || p.all && p.steps < 0 {
		p.failed = true
		return unix.EIO
	}
	p.allows(s)
	return nil
}

// allows fails if a step relies on names that are not durable.
func (p *powerCuts) allows(s host.Step) {
	_, err := os.Lstat(s.To)
	switch p.isNew = err != nil; {
	case s.Kind == host.Renames && isGrant(s.To) && p.unsynced[s.To]: // it is put back
	case s.Kind == host.Renames && isGrant(s.To):
		p.wantNone("a grant gets its name")
	case s.Kind == host.Removes && p.isLink(s.Path) && p.grants():
		p.t.Errorf("%s is removed, and a power cut could bring its grant back", s.Path)
	}
}

func (p *powerCuts) After(s host.Step, err error) {
	switch {
	case err != nil:
	case s.Kind == host.SyncsDir:
		maps.DeleteFunc(p.unsynced, func(path string, _ bool) bool { return filepath.Dir(path) == s.Path })
	case s.Kind == host.Removes && p.isLink(s.Path): // it may be there after all, and lead nowhere
		delete(p.unsynced, s.Path)
	case s.Kind == host.Renames && isGrant(s.To) && p.isNew: // one of several that are new
	case s.Kind == host.Renames && (isGrant(s.To) || p.isLink(s.To)):
		p.unsynced[s.To] = true
	case (s.Kind == host.Renames || s.Kind == host.Removes) && isGrant(s.Path),
		s.Kind == host.Symlinks && p.isLink(s.Path),
		s.Kind == host.MakesDir && filepath.Dir(s.Path) == string(p.b.files.gpus):
		p.unsynced[s.Path] = true
	}
}

// grants reports whether names of grants are among what a power cut could take or bring back.
func (p *powerCuts) grants() bool {
	for path := range p.unsynced {
		if isGrant(path) {
			return true
		}
	}
	return false
}

func (p *powerCuts) wantNone(when string) {
	p.t.Helper()
	if len(p.unsynced) > 0 {
		p.t.Errorf("%s, and a power cut could take names in %v", when, slices.Sorted(maps.Keys(p.unsynced)))
	}
}

func isGrant(path string) bool {
	_, is := idOf(filepath.Base(path))
	return is
}

func (p *powerCuts) isLink(path string) bool {
	dir := filepath.Dir(path)
	return dir == string(p.b.files.owners) || filepath.Dir(dir) == string(p.b.files.gpus)
}

// TestNamesBecomeDurableInTheirOrder: a grant gets its name when all that its placement counted by
// is durable, and its links: of a grant that cannot be read they say whose it is, and on which
// GPUs. The links go when it is durable that the grant has gone. That holds, too, if one step
// fails, and if all from one on do; after one error what the caller was told is durable.
func TestNamesBecomeDurableInTheirOrder(t *testing.T) {
	t.Setenv("TMPDIR", "/dev/shm") // where syncs take no time
	next := sample(5)
	next.Owner = sample(1).Owner // whose link was another's
	steps := append(story(), func(tx *Tx) error { return tx.PutNew([]grant.Grant{next, sample(6)}) },
		func(tx *Tx) error { return tx.Sweep() })
	for _, all := range []bool{false, true} {
		for at, failed := range steps {
			for step := 0; ; step++ {
				b := newLedger(t)
				for _, before := range steps[:at] {
					b.update(before)
				}
				cuts := watchPowerCuts(t, b, step, all)
				err := b.Update(failed)
				sweeps := err != nil && strings.Contains(err.Error(), "cannot tidy") // says nothing of grants
				if err != nil && !sweeps && !all && cuts.grants() {
					t.Errorf("a power cut could undo what was said by %v", err)
				}
				cuts.steps, cuts.all = 1000000, false
				maps.DeleteFunc(cuts.unsynced, func(path string, _ bool) bool {
					return !isGrant(path) // a link that is left leads nowhere
				})
				for _, after := range steps[at+1:] {
					_ = b.Update(after)
				}
				_ = b.Update(func(tx *Tx) error { return tx.Sweep() })
				host.Simulated = nil
				if t.Failed() {
					t.Fatalf("operation %d, step %d fails (and all after it: %v)", at, step, all)
				}
				if !cuts.failed {
					break
				}
				b.sound()
			}
		}
	}
}

// TestMissingLinksAreMadeDurably, as those of a new grant are.
func TestMissingLinksAreMadeDurably(t *testing.T) {
	b := newLedger(t)
	g := sample(1)
	b.put(g)
	for _, link := range []string{b.files.owners.path(g.Owner), b.files.gpus.path(gpu0, g.ID),
		b.files.gpus.of(gpu0)} {
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	cuts := watchPowerCuts(t, b, 1000000, false)
	if _, err := b.Check(nil); err != nil {
		t.Fatal(err)
	}
	cuts.wantNone("after a check")
}

// failing is a simulator in which some steps fail.
type failing func(host.Step) bool

func (f failing) Random() (r [16]byte)   { return r }
func (f failing) After(host.Step, error) {}
func (f failing) Before(s host.Step) error {
	if f(s) {
		return unix.EIO
	}
	return nil
}

// TestARecordThatALinkMayLeadToStays: where the links of grants cannot be listed, one may lead to a
// record that cannot be read.
func TestARecordThatALinkMayLeadToStays(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	b.bind(foreverBinding(id(1), "c"))
	record := b.files.bindings.path(bindingKey("/run/none", "c"))
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() { host.Simulated = nil }()
	for _, dir := range []string{b.files.bindings.byGrant, b.files.bindings.linksOf(id(1))} {
		listings := 0
		host.Simulated = failing(func(s host.Step) bool {
			if s.Kind == host.Reads && s.Path == dir {
				listings++
			}
			return s.Path == dir && listings == 2
		})
		if err := b.Update(func(tx *Tx) error { return tx.Sweep() }); !errors.Is(err, unix.EIO) {
			t.Errorf("%s: %v, want EIO", dir, err)
		}
		if g, err := b.get(id(1)); err != nil || len(g.Bindings) != 1 {
			t.Errorf("%s: %v (%v), want a binding", dir, g.Bindings, err)
		}
	}
	host.Simulated = nil
	b.update(func(tx *Tx) error { return tx.Delete(id(1)) })
}

// TestAnExpiredGrantHidesNoneThatCannotBeRead: the owner's link stays at what may be live.
func TestAnExpiredGrantHidesNoneThatCannotBeRead(t *testing.T) {
	b := newLedger(t)
	over, next := sample(1), sample(2)
	over.Expires, next.Owner = noon.Add(time.Minute), over.Owner
	b.put(over)
	b.now = noon.Add(time.Hour)
	b.put(next)
	over.Label = "touched"
	host.Simulated = failing(func(s host.Step) bool {
		return s.Kind == host.Reads && s.Path == b.files.bindings.linksOf(next.ID)
	})
	b.put(over)
	host.Simulated = nil
	if g, err := b.byOwner(over.Owner); g.ID != next.ID {
		t.Errorf("the owner has %s (%v), want the grant whose bindings could not be listed", g.ID, err)
	}
	if err := os.WriteFile(b.files.grants.path(next.ID), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.put(over)
	var damage *DamagedError
	if g, err := b.byOwner(over.Owner); !errors.As(err, &damage) {
		t.Errorf("the owner has %s (%v), want the grant that cannot be read", g.ID, err)
	}
	b.update(func(tx *Tx) error { return tx.Delete(next.ID) })
}

// TestAnEntryThatIsReadIsDurable: a process was killed between the rename of an entry and the sync
// of the directory. Nothing is done by the new entry while a power cut may bring the old one back.
func TestAnEntryThatIsReadIsDurable(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	old := temporary(b.files.grants.path(id(1))) + keptSuffix
	if err := os.WriteFile(old, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	sweep := func() error { return b.Update(func(tx *Tx) error { return tx.Sweep() }) }
	defer func() { host.Simulated = nil }()
	host.Simulated = failing(func(s host.Step) bool {
		return s.Kind == host.SyncsDir && s.Path == string(b.files.grants)
	})
	if err := sweep(); err == nil {
		t.Error("no error, and the directory cannot be synced")
	}
	if _, err := os.Lstat(old); err != nil {
		t.Error(err)
	}
	host.Simulated = nil
	if err := sweep(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(old); !os.IsNotExist(err) {
		t.Errorf("the old entry is left: %v", err)
	}
}
