package ledger

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/order"
)

// grantFiles is the directory with a file for each grant.
type grantFiles string

func (dir grantFiles) path(id grant.ID) string { return string(dir) + "/" + string(id) + ".json" }

// idOf reads the name of a grant's file.
func idOf(name string) (grant.ID, bool) {
	text, found := strings.CutSuffix(name, ".json")
	id, err := grant.ParseID(text)
	return id, found && err == nil
}

// Get reads one grant with those of its bindings that are not dead. It reads no other grant. Errors
// are ErrNotFound, *DamagedError, or that its bindings cannot be listed.
func (tx *Tx) Get(id grant.ID) (grant.Grant, error) {
	g, err := tx.Entry(id)
	if err == nil {
		g.Bindings, err = tx.Bindings.using(id)
	}
	return g, err
}

// Entry is Get without the bindings, which are most of the work.
func (tx *Tx) Entry(id grant.ID) (grant.Grant, error) {
	rec, err := tx.read(id)
	if err != nil {
		return grant.Grant{}, err
	}
	return rec.grant(), nil
}

// ByOwner finds the grant of a pod or a claim through its link. If the owner has several grants, it
// is the live one. ErrNotFound if it has none.
func (tx *Tx) ByOwner(o grant.Owner) (grant.Grant, error) {
	id, err := tx.files.owners.id(o)
	if err == ErrNotFound {
		return grant.Grant{}, notFoundError{"a grant of %s", string(o)}
	}
	if err != nil {
		return grant.Grant{}, fmt.Errorf("cannot find a grant of %s: %w", o, err)
	}
	g, err := tx.Get(id)
	if err == nil && g.Owner != o { // a link is no proof
		return grant.Grant{}, notFoundError{"a grant of %s", string(o)}
	}
	return g, err
}

// All reads every grant, oldest first, and names those that cannot be read.
func (tx *Tx) All() ([]grant.Grant, []grant.Damage, error) {
	bound, err := namesIn(tx.files.bindings.byGrant)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list bindings: %w", err)
	}
	names, err := namesIn(string(tx.files.grants))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list grants: %w", err)
	}
	grants, damaged := []grant.Grant(nil), []grant.Damage(nil)
	for _, name := range names {
		id, ok := idOf(name)
		if !ok {
			continue
		}
		rec, err := tx.read(id)
		var damage *DamagedError
		switch {
		case errors.Is(err, ErrNotFound): // deleted since the listing
			continue
		case errors.As(err, &damage):
			damaged = append(damaged, damage.Damage)
			continue
		}
		g := rec.grant()
		if _, found := slices.BinarySearch(bound, string(id)); found { // both lists are sorted
			if g.Bindings, err = tx.Bindings.using(id); err != nil {
				return nil, nil, err
			}
		}
		grants = append(grants, g)
	}
	order.Stable(grants, func(a, b grant.Grant) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return grants, damaged, nil
}

// Put creates a grant or replaces it; it is durable when Put returns. Its Bindings are not written.
// On an error the ledger is as before. An entry that cannot be read is not replaced: delete it
// first.
func (tx *Tx) Put(g grant.Grant) error {
	if !tx.writes {
		return errReadOnly
	}
	if err := validate(g); err != nil {
		return fmt.Errorf("internal error: cannot write grant %q: %w", g.ID, err)
	}
	old, err := tx.read(g.ID)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	data, err := grantFormat.encode(g, old)
	if err != nil {
		return fmt.Errorf("internal error: cannot encode grant %s: %w", g.ID, err)
	}
	// Links first: one without a grant is harmless, a grant without its links would be overlooked,
	// and of one that cannot be read only the links say whose it is, and on which GPUs.
	path := tx.files.grants.path(g.ID)
	named := false
	undo, unsynced, err := link(tx.files, g, func() bool { return tx.hidesLive(g) })
	if err == nil {
		failpoint.Hit("ledger/put-linked")
		named, err = replaceDurably(path, data, unsynced)
	}
	if err != nil {
		tx.takeBack(undo, named, map[string][]byte{path: data})
		return fmt.Errorf("cannot write grant %s: %w", g.ID, err)
	}
	unlinkOld(tx.files, old.grant(), g)
	failpoint.Hit("ledger/put-unlinked")
	return nil
}

// PutNew creates grants that the ledger does not have. They are durable when it returns. Their
// files are written at the same time, so many take hardly longer than one. On an error there is
// none of them.
func (tx *Tx) PutNew(all []grant.Grant) (err error) {
	if !tx.writes {
		return errReadOnly
	}
	var undo []func()
	named, content, unsynced := false, map[string][]byte{}, map[string]bool{}
	defer func() {
		if err != nil {
			tx.takeBack(func() {
				for _, f := range slices.Backward(undo) {
					f()
				}
			}, named, content)
		}
	}()
	for _, g := range all {
		if err := validate(g); err != nil {
			return fmt.Errorf("internal error: cannot write grant %q: %w", g.ID, err)
		}
		if _, err := tx.read(g.ID); !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("internal error: cannot make grant %s: there is one (%w)", g.ID, err)
		}
		data, err := grantFormat.encode(g, record{})
		if err != nil {
			return fmt.Errorf("internal error: cannot encode grant %s: %w", g.ID, err)
		}
		unlink, changed, err := link(tx.files, g, func() bool { return tx.hidesLive(g) })
		undo = append(undo, unlink)
		if err != nil {
			return fmt.Errorf("cannot write grant %s: %w", g.ID, err)
		}
		for _, dir := range changed {
			unsynced[dir] = true
		}
		content[tx.files.grants.path(g.ID)] = data
	}
	failpoint.Hit("ledger/put-linked")
	dirs := slices.Sorted(maps.Keys(unsynced))
	if named, err = createDurably(string(tx.files.grants), content, dirs); err != nil {
		return fmt.Errorf("cannot write %d grants: %w", len(all), err)
	}
	return nil
}

// takeBack undoes the links of grants that could not be written, given what was to be in the files,
// and whether one was there under its name. The links stay if it is there again, or can be after a
// power cut: Check removes what is superfluous.
func (tx *Tx) takeBack(undo func(), named bool, content map[string][]byte) {
	if !named {
		undo()
		return
	}
	for path, data := range content {
		has, err := host.ReadRegular(path, maxFile)
		if !errors.Is(err, fs.ErrNotExist) && (err != nil || bytes.Equal(has, data)) {
			return
		}
	}
	if syncDir(string(tx.files.grants)) == nil {
		undo()
	}
}

// hidesLive reports whether the owner of a grant that is over has a live one, or may have: an
// expired grant is kept for a day, and must not hide its owner's next.
func (tx *Tx) hidesLive(g grant.Grant) bool {
	now := tx.ledger.Host.Now()
	if g.Live(now) {
		return false
	}
	other, err := tx.ByOwner(g.Owner)
	if err != nil {
		return !errors.Is(err, ErrNotFound)
	}
	return other.Live(now)
}

// Delete removes a grant or a damaged entry, with its bindings; it is durable when Delete returns.
// On an error the grant stands. Of a grant that is missing it removes the bindings. ErrNotFound if
// there is nothing of it.
func (tx *Tx) Delete(id grant.ID) error {
	if !tx.writes {
		return errReadOnly
	}
	g, err := tx.Entry(id)
	var damage *DamagedError
	if errors.As(err, &damage) {
		g.ID = id
		for _, uuid := range damage.GPUs {
			g.GPUs = append(g.GPUs, grant.Share{UUID: uuid})
		}
	} else if errors.Is(err, ErrNotFound) {
		return tx.dropMissing(id)
	} else if err != nil {
		return err
	}
	tx.found = ""
	// The grant goes first. In the other order, a crash would leave a grant that looks free beside
	// a container that still uses it.
	err = removeDurably(tx.files.grants.path(id), func() error {
		err := tx.files.bindings.dropAll(id)
		failpoint.Hit("ledger/delete-unbound")
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot delete grant %s: %w", id, err)
	}
	// What is left is derived: Check removes what cannot be removed now.
	tx.files.owners.remove(g)
	failpoint.Hit("ledger/delete-owner-unlinked")
	tx.files.gpus.remove(id, g.GPUs)
	failpoint.Hit("ledger/delete-unlinked")
	return nil
}

// read reads a grant's file. Errors are ErrNotFound and *DamagedError.
func (tx *Tx) read(id grant.ID) (record, error) {
	if _, err := grant.ParseID(string(id)); err != nil { // it would become a path
		return record{}, fmt.Errorf("cannot find grant %q: %w", id, ErrNotFound)
	}
	path := tx.files.grants.path(id)
	data, err := host.ReadRegular(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, notFoundError{"grant %s", string(id)}
	}
	var rec record
	if err == nil {
		rec, err = grantFormat.decode(data, id)
	}
	if err != nil {
		return record{}, &DamagedError{grant.Damage{ID: id, Path: path, GPUs: tx.files.gpus.gpusOf(id),
			Err: err.Error()}}
	}
	if tx.writes {
		tx.found = id
	}
	return rec, nil
}

// Whole reads all grants, and what stands beside them, as of a time.
func (tx *Tx) Whole(now time.Time) (grant.View, error) {
	v := grant.View{Now: now}
	var err error
	if v.Grants, v.Damaged, err = tx.All(); err != nil {
		return v, err
	}
	missing, err := tx.missing(v)
	if err != nil {
		return v, err
	}
	v.Damaged = append(v.Damaged, missing...)
	return v, tx.addFound(&v)
}

// addFound adds to a view what the watch found.
func (tx *Tx) addFound(v *grant.View) error {
	found, err := tx.Found()
	v.Outside, v.Excess, v.Held = found.Outside, found.Excess, found.HeldGPUs(tx.ledger.Host)
	return err
}
