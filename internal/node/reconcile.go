package node

import (
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limits"
)

// Reconcile makes the ledger agree with what runs: it removes grants that are over and bindings of dead containers, puts
// right whatever is derived, and reports what it cannot. It reads the whole ledger under the lock. Done twice it does nothing.
func (n *Node) Reconcile() (ledger.Report, error) { return verified(n, n.Ledger.Reconcile) }

// SettleLimits is the part of Reconcile that is about what containers can write to: it needs no look at the ledger's other entries.
func (n *Node) SettleLimits() ([]ledger.Finding, error) {
	root := n.Policy.LimitsRoot()
	if mib, inodes := limits.Nameless(root); mib+inodes == 0 && len(limits.Kept(root)) == 0 {
		return nil, nil
	}
	var findings []ledger.Finding
	err := n.Ledger.Update(func(tx *ledger.Tx) (err error) {
		findings, err = settleLimits(n, tx)
		return err
	})
	return findings, err
}

// TidyDead removes the bindings of containers that are gone, and with them the grants that these adopted, and tells how
// many there were. It reads bindings only, and takes the lock only for those.
func (n *Node) TidyDead() int {
	gone := 0
	_ = n.Ledger.View(func(tx *ledger.Tx) error {
		for _, b := range tx.DeadBindings() {
			n.Tidy(b.RuntimeRoot, b.Container)
			gone++
		}
		return nil
	})
	return gone
}
