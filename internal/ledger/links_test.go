package ledger

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
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
