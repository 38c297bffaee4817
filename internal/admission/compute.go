package admission

import (
	"fmt"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// hintCompute is the mode in which a share of compute is more than a number.
const hintCompute = "mode mps keeps a share of compute (`gpuledger grant --mode mps`); or leave the compute out"

// ComputeUnkept says why a share of compute cannot be granted in a mode, "" where it can. In mode limit nothing keeps one yet: it is counted, and
// refused where the policy wants no share that is a number alone (docs/adr/0041).
func ComputeUnkept(mode grant.Mode, p grant.Policy) string {
	const why = "in mode limit nothing keeps a container to its share of compute, and "
	switch minimum := p.Rules.MinimumStrength; {
	case mode != grant.Limit:
		return ""
	case p.Enforcement.Compute == grant.RefuseShare:
		return why + `enforcement.compute is "refuse"`
	case minimum != "" && !grant.StrengthNone.AtLeast(minimum):
		return why + fmt.Sprintf("policy.minimum_strength is %q", minimum)
	}
	return ""
}

// keepable is nil where the ask's share of compute can be granted.
func (a Ask) keepable(p grant.Policy) error {
	why := ComputeUnkept(a.Mode, p)
	if a.Compute == 0 || why == "" {
		return nil
	}
	return &grant.Refusal{Code: grant.LimitUnenforceable, Message: fmt.Sprintf("cannot grant %d%% of a GPU's compute: %s", a.Compute, why), Hint: hintCompute}
}

// computeKept refuses a container's share of compute where keepable would refuse its grant, which may be older than the policy.
func (c *asking) computeKept() {
	if why := ComputeUnkept(c.grant.Mode, c.policy); c.grant.Compute > 0 && why != "" {
		c.tell(grant.LimitUnenforceable, "compute", fmt.Sprintf("%d%%", c.grant.Compute),
			fmt.Sprintf("holds grant %s with %d%% of the compute, which cannot be kept: %s", c.grantID(), c.grant.Compute, why), hintCompute)
	}
}
