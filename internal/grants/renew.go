package grants

import (
	"fmt"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Renew gives a grant another secret, for whoever has lost the first: the ledger keeps but a hash.
// The old reference opens nothing from then on; a container that runs by it goes on.
// *grant.NotFoundError where there is no such grant, or its time is over.
func Renew(n *node.Node, id grant.ID) (grant.Reference, error) {
	random, err := host.Random()
	if err != nil {
		return grant.Reference{}, err
	}
	reference := grant.Reference{ID: id, Secret: grant.NewSecret(random)}
	err = n.Ledger.Update(func(tx *ledger.Tx) error {
		g, err := get(tx, id)
		switch {
		case err != nil:
			return err
		case g.Draining || g.Expired(n.Host.Now()):
			return &grant.NotFoundError{Message: fmt.Sprintf("cannot renew grant %s: its time is over", id)}
		case !g.Owner.HasSecret():
			return fmt.Errorf("cannot renew grant %s: %s proves it without a secret", id, g.Owner)
		}
		g.Secret = grant.SecretHash(reference.Secret)
		return tx.Put(g)
	})
	if err != nil {
		return grant.Reference{}, err
	}
	return reference, nil
}
