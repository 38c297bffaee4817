package ledger

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

func TestByOwnerFollowsPodsAndClaims(t *testing.T) {
	b := newLedger(t)
	pod, claim, bearer := sample(1), sample(2), sample(3)
	claim.Owner, bearer.Owner = "claim:uid-2", grant.Bearer
	b.put(pod, claim, bearer)
	for _, g := range []grant.Grant{pod, claim} {
		if got, err := b.byOwner(g.Owner); err != nil || got.ID != g.ID {
			t.Errorf("ByOwner(%s): %s, %v", g.Owner, got.ID, err)
		}
	}
	if _, err := b.byOwner(grant.Bearer); !errors.Is(err, ErrNotFound) {
		t.Errorf("ByOwner(bearer): %v, want ErrNotFound: a bearer is nobody in particular", err)
	}
}

func TestAnOwnerLinkIsNoProof(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1), sample(2))
	if err := replaceLink(ownerTarget(id(2)), b.files.owners.path(sample(1).Owner)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.byOwner(sample(1).Owner); !errors.Is(err, ErrNotFound) {
		t.Errorf("ByOwner through a link to another's grant: %v", err)
	}
}

func TestTheOwnersLiveGrantIsFound(t *testing.T) {
	b := newLedger(t)
	first, second := sample(1), sample(2)
	second.Owner = first.Owner
	first.Expires = noon.Add(time.Minute)
	want := func(when string, want grant.ID) {
		t.Helper()
		if got, err := b.byOwner(first.Owner); got.ID != want || want != "" && err != nil {
			t.Errorf("%s: %q (%v), want %q", when, got.ID, err, want)
		}
	}
	b.put(first)
	b.now = noon.Add(time.Hour)
	want("expired", first.ID)
	b.put(second)
	want("granted again", second.ID)
	first.Label = "touched"
	b.put(first)
	want("the expired one written again", second.ID)
	b.update(func(tx *Tx) error { return tx.Delete(first.ID) })
	want("the expired one deleted", second.ID)
	b.update(func(tx *Tx) error { return tx.Delete(second.ID) })
	want("both deleted", "")
}

func TestAChangeOfOwnerOrGPUsMovesTheLinks(t *testing.T) {
	b := newLedger(t)
	g := sample(1)
	before := g.Owner
	b.put(g)
	g.Owner, g.GPUs = "claim:new", []grant.Share{{UUID: gpu1, Index: 1, Memory: grant.GiB}}
	b.put(g)
	if _, err := os.Lstat(b.files.owners.path(before)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the former owner's link: %v", err)
	}
	if _, err := os.Lstat(b.files.gpus.of(gpu0)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the former GPU's index: %v", err)
	}
	for _, link := range []string{b.files.owners.path(g.Owner), b.files.gpus.path(gpu1, g.ID)} {
		if _, err := os.Stat(link); err != nil { // it leads to the grant's file
			t.Error(err)
		}
	}
	b.update(func(tx *Tx) error { return tx.Delete(g.ID) })
	if left := b.tree(); left != "/run/lock" {
		t.Errorf("Delete left:\n%s", left)
	}
}

// unsynced watches which directories have links that a power cut could take.
type unsynced struct {
	t      *testing.T
	dirs   map[string]bool
	grants int // that got their names
}

func (u *unsynced) Before(host.Step) error { return nil }
func (u *unsynced) Random() (r [16]byte)   { return r }

func (u *unsynced) After(s host.Step, err error) {
	switch {
	case err != nil:
	case s.Kind == host.SyncsDir:
		delete(u.dirs, s.Path)
	case s.Kind == host.Renames && filepath.Ext(s.To) == ".json":
		u.grants++
		u.wantNone()
	case s.Kind == host.Symlinks, s.Kind == host.MakesDir, s.Kind == host.Renames:
		u.dirs[filepath.Dir(s.Path)] = true
	}
}

func (u *unsynced) wantNone() {
	u.t.Helper()
	if len(u.dirs) > 0 {
		u.t.Errorf("a power cut could take links in %v", slices.Sorted(maps.Keys(u.dirs)))
	}
}

// TestLinksAreDurableBeforeTheirGrants: of a grant that cannot be read only the links say whose it
// is, and on which GPUs. So they must survive what the grant survives.
func TestLinksAreDurableBeforeTheirGrants(t *testing.T) {
	b := newLedger(t)
	over, next, changed := sample(1), sample(2), sample(3)
	over.Expires, next.Owner = noon.Add(time.Minute), over.Owner // whose link is replaced
	b.put(over)
	b.now = noon.Add(time.Hour)
	changed.GPUs = []grant.Share{{UUID: gpu1, Memory: 1}}
	seen := &unsynced{t: t, dirs: map[string]bool{}}
	host.Simulated = seen
	defer func() { host.Simulated = nil }()
	b.put(next)
	b.update(func(tx *Tx) error { return tx.PutNew([]grant.Grant{sample(3), sample(4)}) })
	b.put(changed)
	if seen.grants != 4 {
		t.Errorf("%d grants were written, want 4", seen.grants)
	}
	for _, link := range []string{b.files.owners.path(next.Owner), b.files.gpus.path(gpu1, changed.ID),
		b.files.gpus.of(gpu1)} {
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Check(nil, 0); err != nil {
		t.Fatal(err)
	}
	seen.wantNone()
	b.sound()
}
