package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// ownerLinks is a directory of links from pods and claims to their grants. An owner's link leads to
// its live grant.
type ownerLinks string

// ownerKey is the name of an owner's link. Owners have a '/' and up to 500 characters, a file name
// has neither.
func ownerKey(o grant.Owner) string {
	sum := sha256.Sum256([]byte(o))
	return hex.EncodeToString(sum[:])
}

func hasLink(o grant.Owner) bool { return o.IsPod() || o.IsClaim() }

func ownerTarget(id grant.ID) string { return "../grants/" + string(id) + ".json" }

func (dir ownerLinks) path(o grant.Owner) string { return string(dir) + "/" + ownerKey(o) }

// id is the id that an owner's link leads to, or ErrNotFound.
func (dir ownerLinks) id(o grant.Owner) (grant.ID, error) {
	if !hasLink(o) {
		return "", ErrNotFound
	}
	target, err := os.Readlink(dir.path(o))
	if errors.Is(err, fs.ErrNotExist) {
		return "", ErrNotFound
	}
	if err != nil {
		return "", err
	}
	id, ok := idOf(filepath.Base(target))
	if !ok {
		return "", fmt.Errorf("its link in %s leads to %s", dir, target)
	}
	return id, nil
}

// point makes the owner's link lead to the grant, unless it leads to another one that it is to
// keep. undo makes it as it was; it is nil if nothing was changed.
func (dir ownerLinks) point(g grant.Grant, keeps func() bool) (undo func(), err error) {
	if !hasLink(g.Owner) {
		return nil, nil
	}
	path, target := dir.path(g.Owner), ownerTarget(g.ID)
	old, err := os.Readlink(path)
	if old == target || err == nil && keeps() {
		return nil, nil
	}
	if err := replaceLink(target, path); err != nil {
		return nil, err
	}
	return func() {
		if old == "" {
			_ = host.Remove(path)
		} else {
			_ = replaceLink(old, path)
		}
	}, nil
}

// remove removes the owner's link if it leads to this grant. It may lead to the owner's next.
func (dir ownerLinks) remove(g grant.Grant) {
	if id, err := dir.id(g.Owner); err == nil && id == g.ID {
		_ = host.Remove(dir.path(g.Owner))
	}
}

// gpuLinks is a directory that has for each GPU a directory of links to the grants on it. It says
// which GPUs a damaged grant was about.
type gpuLinks string

func gpuTarget(id grant.ID) string { return "../../grants/" + string(id) + ".json" }

func (dir gpuLinks) of(uuid string) string { return string(dir) + "/" + uuid }

func (dir gpuLinks) path(uuid string, id grant.ID) string {
	return string(dir) + "/" + uuid + "/" + string(id)
}

// add links a GPU to a grant. fs.ErrExist: it is linked already.
func (dir gpuLinks) add(uuid string, id grant.ID) error {
	path, target := dir.path(uuid, id), gpuTarget(id)
	err := host.Symlink(target, path)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := host.Mkdir(dir.of(uuid)); err != nil {
		return err
	}
	if err = host.Symlink(target, path); err != nil {
		_ = host.Rmdir(dir.of(uuid))
	}
	return err
}

// remove removes the links of GPUs to a grant, and the directory of a GPU that was on no other.
func (dir gpuLinks) remove(id grant.ID, shares []grant.Share) {
	for _, s := range shares {
		_ = host.Remove(dir.path(s.UUID, id))
		_ = host.Rmdir(dir.of(s.UUID)) // unless it has other links
	}
}

// gpusOf lists the GPUs that are linked to a grant, for an entry that cannot be read. Nil: this
// program cannot find out.
func (dir gpuLinks) gpusOf(id grant.ID) []string {
	uuids, err := namesIn(string(dir))
	if err != nil {
		return nil
	}
	var on []string
	for _, uuid := range uuids {
		_, err := os.Lstat(dir.path(uuid, id))
		switch {
		case err == nil:
			on = append(on, uuid)
		case !errors.Is(err, fs.ErrNotExist) && !isNotDir(err):
			return nil
		}
	}
	return on
}

// link makes a grant's links. undo removes the new ones, and unsynced are the directories that have
// them. keeps reports whether the owner's link is to stay at the other grant that it leads to.
func link(f *files, g grant.Grant, keeps func() bool) (undo func(), unsynced []string, err error) {
	var made []grant.Share
	unpoint, err := f.owners.point(g, keeps)
	undo = func() {
		f.gpus.remove(g.ID, made)
		if unpoint != nil {
			unpoint()
		}
	}
	if err != nil {
		return undo, nil, err
	}
	if unpoint != nil {
		unsynced = append(unsynced, string(f.owners))
	}
	failpoint.Hit("ledger/put-owner-linked")
	for _, s := range g.GPUs {
		err := f.gpus.add(s.UUID, g.ID)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return undo, nil, err
		}
		made = append(made, s)
		unsynced = append(unsynced, f.gpus.of(s.UUID))
	}
	if len(made) > 0 { // also where the GPU's directory was there: a crash may have made it
		unsynced = append(unsynced, string(f.gpus))
	}
	return undo, unsynced, nil
}

// unlinkOld removes the links that a grant had and has no more. They are derived: Check removes
// what stays.
func unlinkOld(f *files, old, g grant.Grant) {
	if old.Owner != g.Owner {
		f.owners.remove(old)
	}
	var gone []grant.Share
	for _, s := range old.GPUs {
		if !g.Has(s.UUID) {
			gone = append(gone, s)
		}
	}
	f.gpus.remove(g.ID, gone)
}
