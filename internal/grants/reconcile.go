package grants

import (
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Reconcile makes the ledger agree with what runs: it removes grants that are over and bindings of dead containers, puts
// right whatever is derived, and reports what it cannot. It reads the whole ledger under the lock. Done twice it does nothing.
func Reconcile(n *node.Node) (ledger.Report, error) { return verified(n, n.Ledger.Reconcile) }

// SettleLimits is the part of Reconcile that is about what containers can write to: it needs no look at the ledger's other entries.
func SettleLimits(n *node.Node) ([]ledger.Finding, error) {
	root := n.Policy.LimitsRoot()
	if mib, inodes := limits.Nameless(root); mib+inodes == 0 && len(limits.Kept(root)) == 0 {
		return nil, nil
	}
	var findings []ledger.Finding
	err := n.Ledger.Update(func(tx *ledger.Tx) (err error) {
		findings, err = limitfiles.Settle(n.Policy, n.Host.Now(), tx)
		return err
	})
	return findings, err
}
