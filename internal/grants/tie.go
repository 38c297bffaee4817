package grants

import (
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// checkTies is nil where containers can prove that they are among those that a grant is tied to.
func checkTies(n *node.Node, to []grant.Tie) error {
	if len(to) == 0 || n.Policy.Engine.ProvesPods() {
		return nil
	}
	return &grant.Refusal{Code: grant.GrantOwnerMismatch,
		Message: fmt.Sprintf("cannot tie a grant to pods or namespaces: no engine on this node proves "+
			"which pod a container belongs to (engine = %q), so no container could use it", n.Policy.Engine),
		Hint: "containerd and CRI-O prove which pod a container is of: set engine in the configuration, " +
			"or grant without ties"}
}

// Tie sets who may use a grant, of those who have its reference. Containers that use it already go
// on. The grant is returned as it is then; *grant.NotFoundError where there is none.
func Tie(n *node.Node, id grant.ID, to []grant.Tie) (grant.Grant, error) {
	if err := checkTies(n, to); err != nil {
		return grant.Grant{}, err
	}
	var g grant.Grant
	err := n.Ledger.Update(func(tx *ledger.Tx) (err error) {
		if g, err = get(tx, id); err != nil || slices.Equal(g.For, to) {
			return err
		}
		g.For = slices.Clone(to)
		return tx.Put(g)
	})
	return g, err
}
