package nodeledger

import (
	"errors"
	"io/fs"
	"os"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
)

// EnterWithCDI enters a grant, keeps its reference, and writes its CDI file, by which engines find
// it as a CDI device. It does all of it or nothing.
func (l Ledger) EnterWithCDI(ask admission.Ask) (grant.Reference, error) {
	at, err := l.opened()
	if err != nil {
		return grant.Reference{}, err
	}
	files := at.Files()
	if err := files.Ready(); err != nil {
		return grant.Reference{}, err
	}
	e := l.enter(entry{ledger: l, ask: ask, keeps: true})
	if e.Err != nil {
		return grant.Reference{}, e.Err
	}
	if err = errors.Join(e.keepErr, e.Unprepared); err == nil {
		_, err = files.ExposeWith(e.Reference, func(grant.ID) error { return nil })
	}
	if err != nil {
		// The kubelet does not know the grant yet. The CDI file may exist without being durable.
		return grant.Reference{}, errors.Join(err, at.ReleaseWithCDI(e.Grant.ID))
	}
	return e.Reference, nil
}

// writeCDIFile writes the CDI file of a grant that was entered before, and makes the files of its
// limits.
func (l Ledger) writeCDIFile(r grant.Reference) error {
	prepare := func(id grant.ID) error { return grants.Prepare(l.Open(), id) }
	if l.Batch != nil {
		prepare = func(id grant.ID) error { return l.Batch.prepares.do(prepared{l, id}, prepareAll) }
	}
	_, err := l.Files().ExposeWith(r, prepare)
	return err
}

// WriteCDI writes the CDI file of a grant that is in the ledger, and returns its reference. If
// neither a CDI file nor the kept references have the secret, the grant gets a new one. After a
// boot there is no CDI file. The grant is durable when WriteCDI returns: the process that entered
// it may have been killed just before that.
func (l Ledger) WriteCDI(g grant.Grant) (grant.Reference, error) {
	l, err := l.opened()
	if err != nil {
		return grant.Reference{}, err
	}
	files := l.Files()
	reference, found := files.Reference(g.ID)
	if !found || !reference.Opens(g.Secret) {
		reference, found = l.keptFor(g)
	}
	if !found {
		if reference, err = grants.Renew(l.Open(), g.ID); err != nil {
			return grant.Reference{}, err
		}
	}
	if err := errors.Join(l.Open().Ledger.Persist(), l.keep(reference)); err != nil {
		return grant.Reference{}, err
	}
	return reference, l.writeCDIFile(reference)
}

// RestoreCDI writes a grant's CDI file again if it was removed. The kubelet does not prepare a
// prepared claim again, so its containers could not be restarted without the file. A reference that
// was not kept needs no file, because the kubelet does not have it.
func (l Ledger) RestoreCDI(g grant.Grant) (restored bool, err error) {
	l, err = l.opened()
	if err != nil {
		return false, err
	}
	files := l.Files()
	if _, err := os.Lstat(files.GrantPath(g.ID)); !errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	reference, found := l.keptFor(g)
	if !found {
		return false, nil
	}
	_, err = files.Expose(reference)
	return err == nil, err
}

// ReleaseWithCDI removes a grant, its CDI file and its kept reference. The files go first: after an
// interruption the grant is still in the ledger, and the next call finishes the work.
func (l Ledger) ReleaseWithCDI(id grant.ID) error {
	l, err := l.opened()
	if err != nil {
		return err
	}
	if err := errors.Join(l.Files().Forget(id), l.dropKept(id)); err != nil {
		return err
	}
	return l.Release(id)
}
