package daemon

import (
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// lowered is a grant that is being made smaller: whoever does it has the driver hold its containers to less first, and writes the ledger
// then. Until it has, or is gone, the ledger's word is no reason to give them more.
type reduction struct {
	To []grant.Share `json:"to,omitzero"`
	By grant.Process `json:"by,omitzero"`
}

// stands reports whether who makes the grant smaller is still at it.
func (l reduction) inProgress(h host.Host) bool {
	if l.By.PID == 0 {
		return false
	}
	runs, err := h.Runs(l.By)
	return runs || err != nil
}

// of is what a leaf may have of a grant's shares.
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
