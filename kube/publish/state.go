// Package publish keeps what a node's ledger has of its GPUs on the Node object, for the scheduler
// (package nodestate). The ledger of the node stays what decides.
package publish

import (
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
	"github.com/gpuledger/gpuledger/kube/nodestate"
)

// Of returns what a node publishes. c and err are what nodeledger.Ledger.Read has returned. adopts
// says that a scheduler places, so a node that cannot adopt is closed.
func Of(c nodeledger.Content, err error, adopts bool) nodestate.Published {
	if err != nil {
		return nodestate.Published{Closed: line(err.Error())}
	}
	state, err := stateOf(c)
	if err != nil {
		return nodestate.Published{Closed: line(err.Error())}
	}
	if adopts {
		state.Closed = c.AdoptsNothing()
	}
	return state
}

func stateOf(c nodeledger.Content) (state nodestate.Published, err error) {
	now, err := c.Seats("")
	if err != nil {
		return state, err
	}
	empty := c
	empty.View.Grants = nil
	free, err := empty.Seats("")
	if err != nil {
		return state, err
	}
	noMPS := c.MPSMissing() != ""
	state.GPUs = []nodestate.PublishedGPU{}
	for i, s := range now {
		if s.MIG != nil {
			continue // no annotation of the scheduler names a MIG device
		}
		modes := slices.DeleteFunc(slices.Clone(free[i].Modes), func(m grant.Mode) bool {
			return m == grant.MIG || m == grant.MPS && noMPS || tooWeak(c, m, free[i])
		})
		gpu := nodestate.PublishedGPU{UUID: s.GPU.UUID, Index: s.GPU.Index, Product: s.GPU.Name,
			Memory: s.GPU.Memory, Free: s.Free, Compute: s.Compute, Modes: modes, Mode: s.Mode,
			Unkept: unkept(c), Closed: line(s.Closed), Outside: s.Outside, Held: s.Held,
			Space: s.Space + s.Outside, Granted: granted(c.Grants, s)}
		if s.Served > 1 {
			gpu.Served = s.Served
		}
		state.GPUs = append(state.GPUs, gpu)
	}
	for _, g := range c.Grants {
		owner, is := strings.CutPrefix(string(g.Owner), "pod:")
		if is && g.Source == grant.Adopted && g.Live(c.Now) {
			state.Adopted = append(state.Adopted, owner)
		}
	}
	slices.Sort(state.Adopted)
	return state, nil
}

// granted returns what the grants have of a GPU.
func granted(all []grant.Grant, of admission.Seat) (sum grant.Bytes) {
	for _, g := range all {
		for _, share := range g.GPUs {
			switch {
			case share.UUID != of.GPU.UUID:
			case g.Mode == grant.Exclusive:
				sum += of.GPU.Memory
			default:
				sum += share.Memory
			}
		}
	}
	return sum
}

// usedOf enters what is used of the GPUs. It keeps what was published before unless the difference
// is more than a twentieth of the GPU, so that the annotation does not change all the time.
func usedOf(s nodestate.Published, now, before map[string]grant.Bytes) {
	for i := range s.GPUs {
		g := &s.GPUs[i]
		g.Used = now[g.UUID]
		if was, is := before[g.UUID]; is && (was == 0) == (g.Used == 0) &&
			max(was, g.Used)-min(was, g.Used) <= g.Memory/20 {
			g.Used = was
		}
	}
}

// anyPod stands for the owner of any container's grant. The verdict depends only on the owner's
// kind.
var anyPod = grant.PodOwner("any", "any")

// tooWeak reports whether the node's policy would refuse a container for how weakly a mode is
// enforced.
func tooWeak(c nodeledger.Content, m grant.Mode, s admission.Seat) bool {
	offer := c.Offer(anyPod, m, s)
	return offer.Kind == grant.Refused && offer.Code == grant.LimitUnenforceable
}

// unkept reports whether the node's policy would refuse a container in mode limit for its share of
// compute.
func unkept(c nodeledger.Content) bool {
	g := grant.Grant{Mode: grant.Limit, Owner: anyPod, GPUs: make([]grant.Share, 1)}
	return admission.WhyNoComputeShare(g, c.Inventory, c.Node.Policy) != ""
}

// line returns the first line of a text, and not too much of it: it is in the events of pods.
func line(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	const most = 200
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}
