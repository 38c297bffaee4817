package grants

import (
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/internal/node"
)

// Check verifies the ledger and repairs what is derived.
func Check(n *node.Node) (ledger.Report, error) { return verified(n, n.Ledger.Check) }

// verified adds to a check of the ledger the one of the files of limits.
func verified(n *node.Node, verify func(ledger.Capacity) (ledger.Report, error)) (ledger.Report, error) {
	report, err := verify(func() (*grant.Inventory, grant.Bytes) {
		inv, problem := n.Inventory()
		if problem != nil {
			return nil, 0
		}
		return &inv, grant.Bytes(n.Policy.Rules.Reserve)
	})
	if err == nil {
		var findings []ledger.Finding
		findings, err = SettleLimits(n)
		report.Findings = append(report.Findings, findings...)
	}
	return report, err
}

// Reconcile makes the ledger agree with what runs: it removes grants that are over and bindings of
// dead containers, repairs what is derived, and reports what it cannot repair. It reads the whole
// ledger while the ledger is locked. A second call right after it changes nothing.
func Reconcile(n *node.Node) (ledger.Report, error) { return verified(n, n.Ledger.Reconcile) }

// SettleLimits is the part of Reconcile for the files that containers can write to. It does not
// read the ledger's other entries.
func SettleLimits(n *node.Node) ([]ledger.Finding, error) {
	root := n.Policy.LimitsRoot()
	if mib, inodes := limits.Unlinked(root); mib+inodes == 0 && len(limits.Kept(root)) == 0 {
		return nil, nil
	}
	var findings []ledger.Finding
	err := n.Ledger.Update(func(tx *ledger.Tx) error {
		findings = limitfiles.Settle(n.Policy, n.Host.Now(), tx)
		return nil
	})
	return findings, err
}
