package node

import (
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/mpsstate"
)

// Some refusals are over in a moment, so a create tries again until its timeout.
//
// A pod may come to a claim that other pods have already: the scheduler reserves the claim for it
// before it binds the pod to the node, and the node's driver is told at the same time as the
// kubelet, which needs longer. Where the driver was slower after all, a create waits.
//
// A GPU's first grant in mode mps starts a daemon. A container that comes with the grant would be
// refused, and a pod that may not restart would have failed. A container that adopts an allocation
// has no grant yet that gpuledgerd could see, so its create asks for the daemon, too.
const (
	MaxTimeout = 5 * time.Second // how long a create may wait if the engine sets no limit
	tieTimeout = 2 * time.Second // of it, for a tie
	retryEvery = 50 * time.Millisecond
)

// bindWithRetries decides about a create and binds its grant. If it is refused and may be admitted
// in a moment (grant.Verdict.Late), it tries again until the timeout.
func bindWithRetries(n *Node, f *createFacts) Decision {
	var wanted []string // the GPUs of the daemon that was asked for
	for began := time.Now(); ; time.Sleep(retryEvery) {
		var d Decision
		d, f = bind(n, f) // with the facts of the last try, so that a newer inventory is noticed
		if d.Kind != grant.Refused || !d.Late {
			if wanted != nil && d.Kind == grant.Admit {
				mpsstate.WantNoMore(n.Policy.RunDir, f.Container)
			}
			return d
		}
		if d.Code == grant.MPSNotReady && d.Grant != nil && d.Grant.ID == "" &&
			!slices.Equal(wanted, d.Grant.UUIDs()) { // others may be placed once the inventory is refreshed
			// if it cannot be asked for, the container is refused as without it
			if mpsstate.Want(n.Host, n.Policy.RunDir, f.Container, d.Grant) == nil {
				wanted = d.Grant.UUIDs()
			}
		}
		if time.Since(began)+retryEvery >= timeoutFor(n, f, d.Code) {
			return d
		}
	}
}

// timeoutFor returns how long in all a create that is refused with this code tries again. Without
// gpuledgerd no MPS daemon comes, so it does not wait for one.
func timeoutFor(n *Node, f *createFacts, code grant.Code) time.Duration {
	switch {
	case code != grant.MPSNotReady:
		return min(f.Timeout, tieTimeout)
	case n.Daemon() == 0:
		return 0
	}
	return f.Timeout
}
