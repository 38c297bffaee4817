package node

import (
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// A pod may come to a claim that other pods have already: the scheduler reserves the claim for it
// before it binds the pod to the node, and the node's driver is told at the same time as the
// kubelet, which needs longer. Where the driver was slower after all, a create waits.
const (
	LatePatience = 2 * time.Second // how long a create may wait if the engine sets no limit
	lateLook     = 50 * time.Millisecond
)

// bindPatiently decides about a create, again and again where it is refused and may be admitted in
// a moment.
func bindPatiently(n *Node, f createFacts) Decision {
	for until := time.Now().Add(f.Patience); ; time.Sleep(lateLook) {
		d := bind(n, f)
		if d.Kind != grant.Refused || !d.Late || !time.Now().Add(lateLook).Before(until) {
			return d
		}
	}
}
