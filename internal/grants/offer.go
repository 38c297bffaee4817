package grants

import (
	"fmt"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Offer is what a container that presents the reference and asks for nothing else would get.
// Errors: *grant.NotFoundError where the reference opens no grant, *grant.Refusal where the
// container would be refused whatever it asks, *ledger.DamagedError.
func Offer(n *node.Node, r grant.Reference) (grant.Verdict, error) {
	if n.Broken != nil {
		return grant.Verdict{}, n.Broken
	}
	inv, problem := n.Inventory()
	if problem != nil {
		return grant.Verdict{}, problem.Refusal()
	}
	var v grant.Verdict
	err := n.Ledger.View(func(tx *ledger.Tx) error {
		g, err := get(tx, r.ID)
		switch {
		case err != nil:
			return err
		case g.Owner.HasSecret() && !r.Opens(g.Secret):
			return &grant.NotFoundError{Message: fmt.Sprintf("the secret is not that of grant %s", r.ID)}
		}
		v = admission.Offer(g, n.Host.Now(), inv, n.Policy)
		return nil
	})
	if err != nil {
		return v, err
	}
	if refusal := v.Refusal(); refusal != nil {
		return v, refusal
	}
	return v, nil
}
