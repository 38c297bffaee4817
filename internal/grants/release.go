package grants

import (
	"errors"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Release gives a grant up. A grant that a container uses is draining then: it counts until the
// container has ended, unless forced. The grant is returned as it was left; one that is draining is
// still in the ledger. By force it also ends what closes GPUs without a grant: an entry that cannot
// be read, and the use of a grant that is missing. The error is *grant.NotFoundError if there is no
// such grant.
func Release(n *node.Node, id grant.ID, force bool) (grant.Grant, error) {
	var g grant.Grant
	err := n.Ledger.Update(func(tx *ledger.Tx) error {
		var err error
		if g, err = get(tx, id); err != nil {
			var damaged *ledger.DamagedError
			var missing *grant.NotFoundError
			if !force || !errors.As(err, &damaged) && !errors.As(err, &missing) {
				return err
			}
			if e := removeGrant(n, tx, id); !errors.Is(e, ledger.ErrNotFound) {
				return e
			}
			return err
		}
		g.Draining = len(g.Bindings) > 0 && !force
		return put(n, tx, g)
	})
	return g, err
}

// put keeps a released grant while it is draining, and removes it otherwise.
func put(n *node.Node, tx *ledger.Tx, g grant.Grant) error {
	if g.Draining {
		return tx.Put(g)
	}
	return removeGrant(n, tx, g.ID)
}

// removeGrant removes a grant and what was kept for it. A container that uses it keeps its limit. A
// container that is being created does not start if the driver was to limit it
// (node.SetDriverLimit).
func removeGrant(n *node.Node, tx *ledger.Tx, id grant.ID) error {
	err := tx.Delete(id)
	if err == nil {
		limitfiles.Remove(n.Policy, id)
	}
	return err
}
