package driverlimits

import (
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// reduction is a change that makes a grant smaller. The process that changes it has the driver
// limit the containers first, and writes the ledger then. Until then, the containers do not get
// more again because of the ledger, as long as that process runs.
type reduction struct {
	To []grant.Share `json:"to,omitzero"`
	By grant.Process `json:"by,omitzero"`
}

// inProgress reports whether the process that makes the grant smaller still runs.
func (l reduction) inProgress(h host.Host) bool {
	if l.By.PID == 0 {
		return false
	}
	runs, err := h.Runs(l.By)
	return runs || err != nil
}

// apply returns what a cgroup may have of a grant's shares.
func (l reduction) apply(h host.Host, shares []grant.Share) []grant.Share {
	if !l.inProgress(h) {
		return shares
	}
	least := slices.Clone(shares)
	for i := range least {
		for _, s := range l.To {
			if s.UUID == least[i].UUID {
				least[i].Memory = min(least[i].Memory, s.Memory)
			}
		}
	}
	return least
}
