package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// ownerKey is the name of an owner's link. Owners have a '/' and up to 500 characters, a file name
// has neither.
func ownerKey(o grant.Owner) string {
	sum := sha256.Sum256([]byte(o))
	return hex.EncodeToString(sum[:])
}

func hasLink(o grant.Owner) bool { return o.IsPod() || o.IsClaim() }

func ownerTarget(id grant.ID) string { return "../grants/" + string(id) + ".json" }
func gpuTarget(id grant.ID) string   { return "../../grants/" + string(id) + ".json" }

// ownerLink is the id that an owner's link leads to, or ErrNotFound.
func (tx *Tx) ownerLink(o grant.Owner) (grant.ID, error) {
	if !hasLink(o) {
		return "", ErrNotFound
	}
	target, err := os.Readlink(tx.l.ownerPath(o))
	if errors.Is(err, fs.ErrNotExist) {
		return "", ErrNotFound
	}
	if err != nil {
		return "", err
	}
	id, ok := idOf(filepath.Base(target))
	if !ok {
		return "", errors.New("its link in " + tx.l.ownersDir() + " leads to " + target)
	}
	return id, nil
}

// link makes the grant's links and gives what takes the new ones away again.
func (tx *Tx) link(g grant.Grant) (undo func(), err error) {
	unlinkOwner, err := tx.linkOwner(g)
	if err != nil {
		return unlinkOwner, err
	}
	failpoint.Hit("ledger/put-owner-linked")
	var made []grant.Share
	undo = func() {
		tx.unlinkGPUs(g.ID, made)
		unlinkOwner()
	}
	for _, s := range g.GPUs {
		err := tx.linkGPU(g.ID, s.UUID)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return undo, err
		}
		made = append(made, s)
	}
	return undo, nil
}

// linkOwner points the owner's link at the grant, unless it leads to a live one and this one is
// over: an expired grant is kept for a day, and must not hide its owner's next.
func (tx *Tx) linkOwner(g grant.Grant) (undo func(), err error) {
	nothing := func() {}
	if !hasLink(g.Owner) {
		return nothing, nil
	}
	path, target, now := tx.l.ownerPath(g.Owner), ownerTarget(g.ID), tx.l.Host.Now()
	old, err := os.Readlink(path)
	if old == target {
		return nothing, nil
	}
	if err == nil && !g.Live(now) {
		other, err := tx.ByOwner(g.Owner)
		if err == nil && other.Live(now) {
			return nothing, nil
		}
	}
	if err := replaceLink(target, path); err != nil {
		return nothing, err
	}
	return func() {
		if old == "" {
			_ = os.Remove(path)
		} else {
			_ = replaceLink(old, path)
		}
	}, nil
}

// linkGPU enters a grant in the GPU's index. fs.ErrExist: it is there.
func (tx *Tx) linkGPU(id grant.ID, uuid string) error {
	dir := tx.l.gpuPath(uuid)
	path := filepath.Join(dir, string(id))
	err := os.Symlink(gpuTarget(id), path)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := os.Symlink(gpuTarget(id), path); err != nil {
		_ = unix.Rmdir(dir)
		return err
	}
	return nil
}

// unlinkOld removes the links that the grant had and has no more. They are derived: what stays is
// Check's.
func (tx *Tx) unlinkOld(old, g grant.Grant) {
	if old.Owner != g.Owner {
		tx.unlinkOwner(old)
	}
	var gone []grant.Share
	for _, s := range old.GPUs {
		if !g.Has(s.UUID) {
			gone = append(gone, s)
		}
	}
	tx.unlinkGPUs(g.ID, gone)
}

// unlinkOwner removes the owner's link where it leads to this grant. It may lead to the owner's
// next.
func (tx *Tx) unlinkOwner(g grant.Grant) {
	if id, err := tx.ownerLink(g.Owner); err == nil && id == g.ID {
		_ = os.Remove(tx.l.ownerPath(g.Owner))
	}
}

// unlinkGPUs removes the grant from the GPUs' indexes, and an index with it that is empty then.
func (tx *Tx) unlinkGPUs(id grant.ID, shares []grant.Share) {
	for _, s := range shares {
		_ = os.Remove(filepath.Join(tx.l.gpuPath(s.UUID), string(id)))
		_ = unix.Rmdir(tx.l.gpuPath(s.UUID)) // when it was the last
	}
}

// gpusOf tells from the index which GPUs an entry is about whose file can't. Nil: it can't be told.
func (tx *Tx) gpusOf(id grant.ID) []string {
	uuids, err := namesIn(tx.l.gpusDir())
	if err != nil {
		return nil
	}
	var on []string
	for _, uuid := range uuids {
		_, err := os.Lstat(filepath.Join(tx.l.gpuPath(uuid), string(id)))
		switch {
		case err == nil:
			on = append(on, uuid)
		case !errors.Is(err, fs.ErrNotExist) && !isNotDir(err):
			return nil
		}
	}
	return on
}
