package publish

import (
	"reflect"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodestate"
)

// Each writing of the Node wakes all that watch nodes. Programs outside the ledger can change
// amounts every second, so changes of these wait. An amount that is too old only has a pod placed
// that the node's ledger refuses.
const (
	amountWait = 10 * time.Second // since the last writing, until a change of amounts is written
	smallWait  = time.Minute      // the same for a small change
	smallPart  = 64               // a change is small if it is at most 1/64 of the GPU's memory
)

// due reports whether a state is to be written this long after another one. What changes grants,
// modes or health is due at once.
func due(was, now nodestate.Published, since time.Duration) bool {
	if since >= smallWait || !reflect.DeepEqual(withoutUse(was), withoutUse(now)) {
		return true
	}
	return since >= amountWait && muchChanged(was.GPUs, now.GPUs)
}

// withoutUse returns a state without what changes by itself, by use outside the ledger.
func withoutUse(s nodestate.Published) nodestate.Published {
	s.GPUs = slices.Clone(s.GPUs)
	for i := range s.GPUs {
		g := &s.GPUs[i]
		g.Free, g.Space, g.Outside, g.Used, g.Held = 0, 0, 0, 0, false
	}
	return s
}

// muchChanged reports whether the use of one of the same GPUs has changed much. A GPU that is used
// outside the ledger at all cannot be granted as a whole, so that is much.
func muchChanged(was, now []nodestate.PublishedGPU) bool {
	for i, a := range was {
		b := now[i]
		much := func(x, y grant.Bytes) bool { return max(x, y)-min(x, y) > b.Memory/smallPart }
		if much(a.Free, b.Free) || much(a.Outside, b.Outside) || much(a.Used, b.Used) ||
			(a.Outside == 0) != (b.Outside == 0) || a.Held != b.Held {
			return true
		}
	}
	return false
}
