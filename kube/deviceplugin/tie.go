package deviceplugin

import (
	"errors"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// tie ties the resource's grants to the pods to which the kubelet gives their references. An
// Allocate does not name the pod. The kubelet writes the answer into its checkpoint before any
// container of the pod starts. Once a tied grant has been used its ties stay, because its reference
// has been seen. untied counts the grants that the checkpoint does not have yet.
func (p *Plugin) tie() (untied int, failed error) {
	n := p.Allocator.Ledger.Open()
	if n.Broken != nil {
		return 0, n.Broken
	}
	o, err := nodeledger.ReadNode(n)
	if err != nil {
		return 0, err
	}
	content := nodeledger.Content{Overview: o, Node: n}
	open := slices.DeleteFunc(p.Allocator.Resource.own(content), func(g grant.Grant) bool {
		return g.Draining || len(g.For) > 0 && n.Ledger.Bindings.Used(g.ID)
	})
	switch {
	case len(open) == 0:
		return 0, nil
	case !content.CanTie():
		p.unable.Do(func() {
			p.Allocator.Log.Warn(
				"the engine of this node does not prove which pod a container belongs to, so grants are "+
					"not tied to pods: a container that has read a reference can use its grant",
				"resource", p.Allocator.Resource.Name, "engine", n.Policy.Engine)
		})
		return 0, nil
	}
	to := readCheckpoint(p.Dir, p.Allocator.Resource.Name)
	for _, g := range open {
		var ties []grant.Tie
		for _, uid := range to[g.ID] {
			ties = append(ties, grant.PodTie(uid))
		}
		slices.Sort(ties)
		if ties = slices.Compact(ties); len(ties) > 0 {
			failed = errors.Join(failed, p.Allocator.Ledger.Tie(g, ties, p.Allocator.Log))
		} else if len(g.For) == 0 {
			untied++
		}
	}
	return untied, failed
}

// tieInterval is the wait between two looks at a checkpoint that the kubelet is about to write.
const tieInterval = 50 * time.Millisecond

// tieTime is how long the checkpoint is looked at after an Allocate; a variable for a test.
var tieTime = admissionTime

// tieSoon ties the grants that were just allocated, before a container can start with them. The
// next call of Ensure may be too late.
func (p *Plugin) tieSoon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tieUntil = time.Now().Add(tieTime)
	if p.tying || p.done == nil { // the service has ended under its last call: Ensure ties
		return
	}
	p.tying = true
	done := p.done
	p.ties.Go(func() {
		for {
			until, before := p.tieDeadline(), statCheckpoint(p.Dir)
			// The rest, and errors, are left to Ensure.
			if untied, err := p.tie(); untied == 0 || err != nil || time.Now().After(until) {
				if p.doneTying(until) {
					return
				}
				continue
			}
			// It lists every device of the node, so it is read only when it has changed.
			for before.same(statCheckpoint(p.Dir)) && time.Now().Before(until) {
				select {
				case <-done:
					return
				case <-time.After(tieInterval):
				}
			}
		}
	})
}

func (p *Plugin) tieDeadline() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tieUntil
}

// doneTying ends the goroutine of tieSoon, unless a grant was allocated meanwhile.
func (p *Plugin) doneTying(until time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tieUntil.Equal(until) {
		p.tying = false
	}
	return !p.tying
}
