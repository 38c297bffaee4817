package book

import (
	"errors"
	"io/fs"
	"os"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// EnterExposed makes a grant that engines find as a CDI device: both or nothing.
func (b Book) EnterExposed(ask admission.Ask) (grant.Reference, error) {
	files := b.Files()
	if err := files.Ready(); err != nil {
		return grant.Reference{}, err
	}
	g, reference, err := b.Enter(ask)
	if err != nil {
		return grant.Reference{}, err
	}
	if err = b.keep(reference); err == nil {
		_, err = files.Expose(reference)
	}
	if err != nil {
		return grant.Reference{}, errors.Join(err, b.Withdraw(g.ID)) // nobody was told of it yet; the file may be there, and not durable
	}
	return reference, nil
}

// ExposeAgain gives the reference of a grant that was made before, its CDI file in place. Where the secret stands neither there, as
// after a boot, nor among the references that are kept, the grant gets another.
func (b Book) ExposeAgain(g grant.Grant) (grant.Reference, error) {
	files := b.Files()
	reference, found := files.Reference(g.ID)
	if !found || !reference.Opens(g.Secret) {
		reference, found = b.keptFor(g)
	}
	if !found {
		var err error
		if reference, err = b.Open().Renew(g.ID); err != nil {
			return grant.Reference{}, err
		}
	}
	if err := b.keep(reference); err != nil {
		return grant.Reference{}, err
	}
	_, err := files.Expose(reference)
	return reference, err
}

// Restore makes the CDI file of a grant again that somebody has removed: the kubelet does not ask for a claim that is prepared, and its
// containers could not be started again. A reference that is kept nowhere is known to nobody, and needs no file.
func (b Book) Restore(g grant.Grant) (restored bool, err error) {
	files := b.Files()
	if _, err := os.Lstat(files.GrantPath(g.ID)); !errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	reference, found := b.keptFor(g)
	if !found {
		return false, nil
	}
	_, err = files.Expose(reference)
	return err == nil, err
}

// Withdraw removes a grant with its CDI file and what is kept of it. The files go first: whoever is stopped in between finds the grant still, and
// comes again.
func (b Book) Withdraw(id grant.ID) error {
	if err := errors.Join(b.Files().Forget(id), b.dropKept(id)); err != nil {
		return err
	}
	return b.Release(id)
}
