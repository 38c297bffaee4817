package node

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// checkTies is nil where containers can prove that they are among those that a grant is tied to.
func checkTies(n *Node, to []grant.Tie) error {
	if len(to) == 0 || n.Policy.Engine.Vouches() {
		return nil
	}
	return &grant.Refusal{Code: grant.GrantOwnerMismatch, Message: fmt.Sprintf("cannot tie a grant to pods or namespaces: nobody on this node vouches for who a container is (engine = %q), so no container could use it", n.Policy.Engine),
		Hint: "containerd and CRI-O vouch for pods: set engine in the configuration, or grant without ties"}
}

// Tie sets who may use a grant, of those who have its reference. Containers that use it already go on. The grant is returned as it is then;
// *grant.NotFoundError where there is none.
func (n *Node) Tie(id grant.ID, to []grant.Tie) (grant.Grant, error) {
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

// A pod may come to a claim that other pods have already: the scheduler reserves the claim for it before it binds the pod to the node, and the
// node's driver is told at the same time as the kubelet, which needs longer. Where the driver was slower after all, a create waits.
const (
	LatePatience = 2 * time.Second // how long a create may wait where nobody times it
	lateLook     = 50 * time.Millisecond
)

// bindPatiently decides about a create, again and again where it is refused and may be admitted in a moment.
func bindPatiently(n *Node, f facts) Decision {
	for until := time.Now().Add(f.Patience); ; time.Sleep(lateLook) {
		d := bind(n, f)
		if d.Kind != grant.Refused || !d.Late || !time.Now().Add(lateLook).Before(until) {
			return d
		}
	}
}
