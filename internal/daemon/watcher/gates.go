package watcher

import (
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/throttle"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// gateSetter holds grants to their shares of compute, if policy has the shim throttle launches.
// After each sample it sets the gate of each grant on each of its GPUs.
type gateSetter struct {
	loops map[grantGPU]*throttle.Controller
	last  time.Time // time of the last sample
}

// update moves the gates. If a grant computes nothing on a GPU, or the driver reports nothing, its
// gate is that of its share.
func (t *gateSetter) update(n *node.Node, grants []grant.Grant, r watch.Comparison) {
	if n.Policy.Enforcement.Compute != grant.ThrottleShare { // as on most nodes
		t.loops = nil
		return
	}
	used := make(map[grantGPU]int, len(r.Grants))
	for _, g := range r.Grants {
		used[grantGPU{g.ID, g.GPU}] = g.Compute
	}
	loops := map[grantGPU]*throttle.Controller{}
	for _, g := range grants {
		if share := admission.ThrottlePercent(g, n.Policy); share > 0 {
			t.setGates(n.Policy.LimitsDir(g.ID), g, share, r.Taken.Sub(t.last), used, loops)
		}
	}
	t.loops, t.last = loops, r.Taken
}

// setGates does nothing for a grant without records: no container of it was ever created.
func (t *gateSetter) setGates(dir string, g grant.Grant, share int, passed time.Duration,
	used map[grantGPU]int, loops map[grantGPU]*throttle.Controller) {
	l, err := limits.Open(dir)
	if err != nil {
		return
	}
	defer l.Close()
	for _, s := range g.GPUs {
		key := grantGPU{g.ID, s.UUID}
		gate := throttle.ForShare(share)
		if percent, computes := used[key]; computes && percent >= 0 {
			loop := t.loops[key]
			if loop == nil {
				loop = &throttle.Controller{}
			}
			gate, loops[key] = loop.Next(share, percent, passed), loop
		}
		_ = l.SetGate(s.UUID, gate.Open, gate.Period)
	}
	l.Beat()
}
