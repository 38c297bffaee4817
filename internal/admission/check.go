package admission

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// checkRulesHold finds that no device rule takes effect where the container's runtime runs.
func checkRulesHold(q *question) (found findings) {
	if q.request.Unruled {
		found.add(grant.RulesNotEnforced, "node", "its runtime does not run as root of the node")
	}
	return found
}

// checkCgroups finds that the engine has switched cgroups off, whatever else is known. It is one of
// the hits, which are not compared with a grant where the inventory is unknown.
func checkCgroups(q *question) (found findings) {
	for _, h := range q.request.Hits {
		if h.Code == grant.RulesNotEnforced {
			found.add(h.Code, h.Vector, h.Value)
		}
	}
	return found
}

// ungrantedHits finds every way to a GPU of a container without a grant.
func ungrantedHits(q *question) (found findings) {
	for _, h := range countingHits(q) {
		found.add(h.Code, h.Vector, h.Value)
	}
	return found
}

// checkAdopts finds that a container must adopt an allocation and cannot, because there is none or
// the node adopts none. If another reason is known already, that one is enough.
func checkAdopts(q *question, resolved resolution) (found findings) {
	mark := q.request.MustAdopt
	if mark == "" || q.request.Sandbox || len(resolved.found) > 0 || adopts(q) {
		return nil
	}
	message, hint := "no annotation of its pod allocates one to it", hintPlaced
	if q.policy.Annotations.Trust != grant.Adopt {
		message, hint = "this node adopts none", hintAdopting
	}
	found.explain(grant.GrantNotFound, mark, grant.AdoptMark,
		"must adopt the GPU that a scheduler allocates to it ("+vectorName(mark)+": adopt), and "+message,
		hint)
	return found
}

// ungrantedAllocations finds the allocations of a container without a grant. If the container could
// adopt them, adoptGrant has found why it did not.
func ungrantedAllocations(q *question) (found findings) {
	if q.request.Sandbox || adopts(q) {
		return nil
	}
	for _, a := range q.request.Allocations {
		switch {
		case !a.Asks || a.Malformed != "":
		case a.Own && len(q.policy.Asks.Engines) > 0:
			found.explain(grant.AskNotAllowed, a.Source, "", "asks by "+vectorName(a.Source)+
				" for a share of a GPU, and this node lets no container of this engine ask", hintNoAsks)
		case a.Own && q.request.Container.Pod == (grant.Identity{}):
			found.explain(grant.GrantNotFound, a.Source, "", "asks by "+vectorName(a.Source)+
				" for a share of a GPU, but holds no grant, and this node lets no container ask", hintNoAsks)
		default:
			found.explain(grant.GrantNotFound, a.Source, "", "says by "+vectorName(a.Source)+
				" what its share of a GPU is, but holds no grant", hintAllocation)
		}
	}
	return found
}

// released ends the value of a finding about a grant that was released while a container used it.
const released = " (released)"

// checkUsable checks the grant itself: its time, its other containers and its GPUs.
func checkUsable(q *question, g *grant.Grant) (found findings) {
	switch {
	case g.Expired(q.view.Now):
		found.add(grant.GrantExpired, "grant", string(g.ID))
	case g.Draining:
		found.add(grant.GrantExpired, "grant", string(g.ID)+released)
	case len(g.Bindings) > 0 && !g.Owner.IsClaim():
		found.add(grant.GrantInUse, "grant", string(g.ID))
	}
	if len(q.view.Problems) > 0 {
		return found // the inventory may be unknown
	}
	for _, s := range g.GPUs {
		d, known := q.inventory.Device(s.UUID)
		switch {
		case !known:
			found.add(grant.GPUUnhealthy, s.UUID, "is not there any more")
		case d.Trouble() != "":
			found.add(grant.GPUUnhealthy, s.UUID, d.Trouble())
		case g.Mode.IsWhole() && slices.ContainsFunc(d.SharingMemory(), func(uuid string) bool {
			return q.view.Held[uuid]
		}):
			found.add(grant.GrantInUse, "held:"+s.UUID, s.UUID)
		}
	}
	return found
}

// checkAllocations compares what a scheduler wrote with the grant.
func checkAllocations(q *question, u *grantUse) (found findings) {
	for _, a := range q.request.Allocations {
		ignored := a.Env && u.grant.Source != grant.Asked
		if a.Malformed == "" && !ignored { // otherwise resolveGrant has found it
			found.disagreements(&q.inventory, u.grant, a)
		}
	}
	return found
}

// disagreements adds what an allocation states differently from the grant.
func (f *findings) disagreements(inv *grant.Inventory, g *grant.Grant, a grant.Allocation) {
	disagrees := func(stated string) { f.add(grant.AnnotationMismatch, a.Source, stated) }
	if a.Named { // checkHits compares those
		return
	}
	isCount := a.Number && g.Source == grant.Asked && a.GPUs[0] == strconv.Itoa(len(g.GPUs))
	if a.GPUs != nil && !isCount && !isExactly(inv, g, a.GPUs) {
		disagrees(fmt.Sprintf("GPUs %v", a.GPUs))
	}
	// The memory of a MIG device is fixed, so it may be more than what was asked for.
	if a.Memory > g.Memory() || a.Memory != 0 && a.Memory < g.Memory() && g.Mode != grant.MIG {
		disagrees(a.Memory.String())
	}
	if a.Units != 0 && !sameUnits(inv, g, a) {
		disagrees(strconv.Itoa(a.Units) + " units of memory")
	}
	if a.Compute != 0 && a.Compute != g.Compute {
		disagrees(strconv.Itoa(a.Compute) + "% compute")
	}
	if a.Mode != "" && a.Mode != g.Mode {
		disagrees("mode " + string(a.Mode))
	}
}

// isExactly reports whether the names, UUIDs or indexes, are all of the grant's GPUs and no others.
func isExactly(inv *grant.Inventory, g *grant.Grant, names []string) bool {
	named := map[string]bool{}
	for _, name := range names {
		d, _ := inv.Device(name)
		if !g.Has(d.UUID()) {
			return false
		}
		named[d.UUID()] = true
	}
	return len(named) == len(g.GPUs)
}

// sameUnits compares gpushare's units, which are those of each GPU.
func sameUnits(inv *grant.Inventory, g *grant.Grant, a grant.Allocation) bool {
	for _, s := range g.GPUs {
		if s.Memory != grant.Bytes(a.Units)*unitOf(inv, a, s.UUID) {
			return false
		}
	}
	return true
}

// checkDoubtful finds what may undo what enforces a grant.
func checkDoubtful(q *question) (found findings) {
	for _, h := range q.request.Doubtful {
		found.add(h.Code, h.Vector, h.Value)
	}
	return found
}

// checkImage finds that the image could not be read.
func checkImage(q *question) (found findings) {
	if problem := q.request.Layout.Problem; problem != "" {
		found.add(grant.InjectionImpossible, "root", problem)
	}
	return found
}
