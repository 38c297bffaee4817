// Package admission decides: Decide says whether a container may start and with which edits, and
// Place says which GPUs a new grant gets. Neither reads a file, a clock or the system. All facts
// come in as arguments, so every case is a row of a table in a test.
//
// Package node gathers the facts, and refuses the container if it cannot (node/facts.go).
// node.Admit puts a verdict into force. In report mode it only records a refusal, or a verdict that
// takes GPUs away. Before a container starts, node can still refuse what Decide passes or admits:
// if the container would share its cgroup with another (node/cgroup.go), or if the edits fail
// (node/plan.go).
package admission

import (
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Decide returns the verdict on a container with the request r, on a node with this inventory and
// policy whose ledger shows v. The view needs only the grants that the container owns or names.
func Decide(r grant.Request, v grant.View, inv grant.Inventory, p grant.Policy) grant.Verdict {
	var j Judge
	return j.Decide(r, v, inv, p)
}

// Judge caches what the decisions about one container share. There are up to four, with one
// inventory and one policy: on the spec before its edits and after them, and on both again while
// the ledger is locked. It keeps the list of the driver's files, which is most of the work, and
// nothing else. Only one goroutine may use it.
type Judge struct {
	wanted wantedFiles      // what files depends on, besides the inventory and the policy
	files  []*cdispec.Mount // the driver's files
	done   bool             // files is set
}

// Decide makes the decision. (Decide, the function above, calls it with an empty cache.)
//
// It runs in stages. Each takes values and returns values: what it found against the container, and
// what the verdict needs. No stage changes q.
func (j *Judge) Decide(r grant.Request, v grant.View, inv grant.Inventory, p grant.Policy) grant.Verdict {
	q := &question{request: r, view: v, inventory: inv, policy: p}
	switch {
	case !asksForGPU(q):
		return pass(q)
	case onlyUnclosed(q):
		return closeRules(q)
	case r.Sandbox: // no grant is for a sandbox
		return decideWithoutGrant(q, resolution{})
	case Exempt(r.Container.Pod, p) && !claimsGrant(q):
		return pass(q, "exempt from grants by policy")
	}
	resolved := resolveGrant(q)
	if len(resolved.found) == 0 && adopts(q) {
		resolved = adoptGrant(q)
	}
	if resolved.grant == nil {
		return decideWithoutGrant(q, resolved)
	}
	return j.decideWithGrant(q, resolved)
}

// decideWithoutGrant returns the verdict on a container that no grant covers. It is refused for
// every GPU that it reaches, or the policy lets it start without them.
func decideWithoutGrant(q *question, resolved resolution) grant.Verdict {
	if v, possible := withoutGPUs(q); possible {
		return v
	}
	return refuse(q, resolved, slices.Concat(
		resolved.found,
		checkRulesHold(q),
		checkAdopts(q, resolved),
		ungrantedHits(q),
		ungrantedAllocations(q),
	))
}

// decideWithGrant returns the verdict on a container with a grant. The grant must be usable, it
// must cover every GPU that the spec reaches, and the node must enforce it as the policy wants.
func (j *Judge) decideWithGrant(q *question, resolved resolution) grant.Verdict {
	found := slices.Concat(resolved.found, checkRulesHold(q), checkUsable(q, resolved.grant))
	if len(q.view.Problems) > 0 { // the inventory may be unknown, so nothing can be compared with it
		return refuse(q, resolved, slices.Concat(found, checkCgroups(q)))
	}
	u := j.useOf(q, resolved.grant)
	removed, uncovered := checkHits(q, u)
	found = slices.Concat(
		found,
		checkAllocations(q, u),
		uncovered,
		checkDoubtful(q),
		checkImage(q),
		checkLimit(q, u),
		checkCompute(q, u),
		checkMPS(q, u),
		checkStrength(q, u),
	)
	if len(found) > 0 {
		return refuse(q, resolved, found)
	}
	return admit(q, u, removed, resolved.recorded)
}
