package ledger

import (
	"cmp"
	"fmt"
	"os"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// A container can be bound to a grant that is not in the ledger: the state directory is an older
// copy, or is not mounted yet. It can open the grant's GPUs, and only the missing entry names them.
// So no GPU takes new grants while such a container may run, as with an entry that cannot be read.

// missing returns the grants that containers are bound to and that are not in the ledger.
func (s *survey) missing() (all []grant.Damage) {
	for _, b := range s.bindings {
		if s.isMissing(b) {
			all = append(all, missingGrant(s.files, *b))
		}
	}
	return onePerGrant(all)
}

// isMissing reports whether the grant of a container that may run is not in the ledger.
func (s *survey) isMissing(b *grant.Binding) bool {
	_, found := s.grants[b.Grant]
	return !found && !ends(s, b)
}

// missing returns the same for a view that was read without the lock.
func (tx *Tx) missing(v grant.View) (all []grant.Damage, err error) {
	bindings, found := map[string]bool{}, map[grant.ID]bool{}
	for _, g := range v.Grants {
		found[g.ID] = true
		for _, b := range g.Bindings {
			bindings[bindingKey(b.RuntimeRoot, b.Container)] = true
		}
	}
	for _, d := range v.Damaged {
		found[d.ID] = true
	}
	keys, err := tx.files.bindings.keys()
	if err != nil {
		return nil, fmt.Errorf("cannot list bindings: %w", err)
	}
	for _, key := range keys {
		if bindings[key] {
			continue
		}
		b, err := tx.files.bindings.load(key)
		if err != nil || found[b.Grant] || !tx.isMissing(key, b.Grant) {
			continue
		}
		if tx.Bindings.containers.Examine(&b); b.Life != grant.Dead {
			all = append(all, missingGrant(tx.files, b))
		}
	}
	return onePerGrant(all), nil
}

// isMissing reports whether the grant of a binding that was read is not in the ledger. A grant is
// made before it is bound, and when it is deleted its bindings go before the last trace of it. The
// order here is such that neither is taken for a missing grant.
func (tx *Tx) isMissing(key string, id grant.ID) bool {
	path := tx.files.grants.path(id)
	isThere := func(path string) bool { return host.StampOf(path) != host.Stamp{} }
	return !isThere(path) && !isThere(deleted(path)) && isThere(tx.files.bindings.path(key))
}

func missingGrant(f *files, b grant.Binding) grant.Damage {
	return grant.Damage{ID: b.Grant, Path: f.grants.path(b.Grant), GPUs: f.gpus.gpusOf(b.Grant),
		Err: fmt.Sprintf("container %q is bound to it, and it is not in the ledger", b.Container)}
}

func onePerGrant(all []grant.Damage) []grant.Damage {
	slices.SortFunc(all, func(a, b grant.Damage) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Err, b.Err))
	})
	return slices.CompactFunc(all, func(a, b grant.Damage) bool { return a.ID == b.ID })
}

// dropMissing drops the bindings of a grant that is not in the ledger; ErrNotFound if it has none.
func (tx *Tx) dropMissing(id grant.ID) error {
	if _, err := os.Lstat(tx.files.bindings.linksOf(id)); err != nil {
		return notFoundError{"grant %s", string(id)}
	}
	return tx.files.bindings.dropAll(id)
}
