package admission

import (
	"fmt"
	"strconv"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// hintCompute names the mode that enforces a share of compute.
const hintCompute = "mode mps keeps a share of compute (`gpuledger grant --mode mps`); " +
	"or leave the compute out (of a grant that has a share, `gpuledger grant --update ID --compute 0`)"

// ThrottlePercent returns the percent of each GPU's time to which the shim throttles a grant's
// containers; 0: it does not throttle them.
func ThrottlePercent(g grant.Grant, p grant.Policy) int {
	if g.Mode != grant.Limit || p.Enforcement.Compute != grant.ThrottleShare {
		return 0
	}
	return g.Compute
}

// WhyNoComputeShare says why a grant with this mode, owner and GPUs can have no share of compute;
// "" if it can. In mode limit the share is counted, or throttled. It is refused if the policy wants
// no share that is only counted (docs/adr/0041), or if it cannot be throttled (docs/adr/0042).
func WhyNoComputeShare(g grant.Grant, inv grant.Inventory, p grant.Policy) string {
	const why = "in mode limit nothing keeps a container to its share of compute, and "
	minimum := p.Rules.MinimumStrength
	switch {
	case g.Mode != grant.Limit:
		return ""
	case p.Enforcement.Compute == grant.ThrottleShare && !grant.StrengthLibrary.AtLeast(minimum):
		return fmt.Sprintf("a throttle of launches has strength library, "+
			"and policy.minimum_strength is %q", minimum)
	case p.Enforcement.Compute == grant.ThrottleShare:
		return whyUnthrottled(g, inv, p)
	case p.Enforcement.Compute == grant.RefuseShare:
		return why + `enforcement.compute is "refuse"`
	case !grant.StrengthNone.AtLeast(minimum):
		return why + fmt.Sprintf("policy.minimum_strength is %q", minimum)
	}
	return ""
}

// whyUnthrottled says why the launches of a grant's containers cannot be throttled on this node; ""
// if they can. Only the shim throttles. If the driver limits the memory, the shim is not mounted,
// because the shim's limit is weaker than the driver's.
func whyUnthrottled(g grant.Grant, inv grant.Inventory, p grant.Policy) string {
	const why = "launches cannot be throttled: "
	if WhyNoDriverLimit(g, inv, p) == "" {
		return why + `the driver limits the memory here, and only the shim throttles ` +
			`(enforcement.limit = "library" uses it)`
	}
	if less := WhyNoShimLimit(len(g.GPUs), inv, p); less != "" {
		return why + less
	}
	if !inv.Shim.Throttle {
		return why + "the shim in " + inv.Shim.Dir + " has no " + grant.ThrottleLibrary
	}
	return ""
}

// whyNoComputeShare returns what WhyNoComputeShare says of the grant that is asked for.
func whyNoComputeShare(a Ask, inv grant.Inventory, p grant.Policy) string {
	g := grant.Grant{Mode: a.Mode, Owner: a.Owner, GPUs: make([]grant.Share, a.count())}
	return WhyNoComputeShare(g, inv, p)
}

// Keepable returns a refusal if the share of compute cannot be granted, otherwise nil.
func (a Ask) Keepable(inv grant.Inventory, p grant.Policy) error {
	why := whyNoComputeShare(a, inv, p)
	if a.Compute == 0 || why == "" {
		return nil
	}
	return &grant.Refusal{Code: grant.LimitUnenforceable, Hint: hintCompute,
		Message: fmt.Sprintf("cannot grant %d%% of a GPU's compute: %s", a.Compute, why)}
}

// checkCompute finds that a container's share of compute cannot be enforced. The grant may be older
// than the policy that forbids it, and the container may not get the proxy that throttles.
func checkCompute(q *question, u *grantUse) (found findings) {
	if u.grant.Compute == 0 {
		return nil
	}
	why := WhyNoComputeShare(*u.grant, q.inventory, q.policy)
	if why == "" && u.throttled && !u.shimmed {
		why = "launches cannot be throttled: " + noLibraries
	}
	if why != "" {
		share := strconv.Itoa(u.grant.Compute) + "%"
		found.explain(grant.LimitUnenforceable, "compute", share,
			fmt.Sprintf("holds grant %s with %s of the compute, which cannot be kept: %s", u.id, share, why),
			hintCompute)
	}
	return found
}
