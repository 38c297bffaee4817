package admission

import (
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// hintCompute is the mode in which a share of compute is more than a number.
const hintCompute = "mode mps keeps a share of compute (`gpuledger grant --mode mps`); or leave the " +
	"compute out (of a grant that has a share, `gpuledger grant --update ID --compute 0`)"

// Share is the percent of each GPU's time that the shim holds a grant's containers to, 0 for none.
func Share(g grant.Grant, p grant.Policy) int {
	if g.Mode != grant.Limit || p.Enforcement.Compute != grant.ThrottleShare {
		return 0
	}
	return g.Compute
}

// ComputeUnkept says why a grant of its mode and its owner can have no share of compute, "" where
// it can. In mode limit it is counted, and refused where the policy wants no share that is a number
// alone (docs/adr/0041), or throttled, and refused where that cannot be (docs/adr/0042).
func ComputeUnkept(g grant.Grant, inv grant.Inventory, p grant.Policy) string {
	const why = "in mode limit nothing keeps a container to its share of compute, and "
	minimum := p.Rules.MinimumStrength
	switch {
	case g.Mode != grant.Limit:
		return ""
	case p.Enforcement.Compute == grant.ThrottleShare && !grant.StrengthLibrary.AtLeast(minimum):
		return fmt.Sprintf("a throttle of launches has strength library, and policy.minimum_strength is %q",
			minimum)
	case p.Enforcement.Compute == grant.ThrottleShare:
		return throttleless(g, inv, p)
	case p.Enforcement.Compute == grant.RefuseShare:
		return why + `enforcement.compute is "refuse"`
	case !grant.StrengthNone.AtLeast(minimum):
		return why + fmt.Sprintf("policy.minimum_strength is %q", minimum)
	}
	return ""
}

// throttleless says why the launches of a grant's containers cannot be throttled on this node; ""
// where they can. Only the shim does, and it is not mounted where the driver itself limits the
// memory: that would be held the weaker for it.
func throttleless(g grant.Grant, inv grant.Inventory, p grant.Policy) string {
	const why = "launches cannot be throttled: "
	if Driverless(g, inv, p) == "" {
		return why + `the driver limits the memory here, and only the shim throttles (enforcement.limit = ` +
			`"library" uses it)`
	}
	if less := Limitless(len(g.GPUs), inv, p); less != "" {
		return why + less
	}
	if !inv.Shim.Throttle {
		return why + "the shim in " + inv.Shim.Dir + " has no " + grant.ThrottleLibrary
	}
	return ""
}

// throttled reports whether the container gets the proxy that throttles its launches. One that
// cannot have it is refused (computeKept).
func (c *asking) throttled() bool { return Share(*c.grant, c.policy) > 0 }

// Keepable is nil where the ask's share of compute can be granted.
func (a Ask) Keepable(inv grant.Inventory, p grant.Policy) error {
	why := ComputeUnkept(grant.Grant{Mode: a.Mode, Owner: a.Owner, GPUs: make([]grant.Share, a.count())},
		inv, p)
	if a.Compute == 0 || why == "" {
		return nil
	}
	return &grant.Refusal{Code: grant.LimitUnenforceable,
		Message: fmt.Sprintf("cannot grant %d%% of a GPU's compute: %s", a.Compute, why), Hint: hintCompute}
}

// computeKept refuses a container's share of compute where Keepable would refuse its grant, which
// may be older than the policy, and where the proxy that throttles is not what this container gets.
func (c *asking) computeKept() {
	why := ComputeUnkept(*c.grant, c.inventory, c.policy)
	if why == "" && Share(*c.grant, c.policy) > 0 && !c.held {
		why = "launches cannot be throttled: it does not get the driver's libraries, by its image or by " +
			"NVIDIA_DRIVER_CAPABILITIES"
	}
	if c.grant.Compute > 0 && why != "" {
		c.tell(grant.LimitUnenforceable, "compute", fmt.Sprintf("%d%%", c.grant.Compute),
			fmt.Sprintf("holds grant %s with %d%% of the compute, which cannot be kept: %s", c.grantID(),
				c.grant.Compute, why), hintCompute)
	}
}

// ComputeStrength is what holds the containers of a grant to its share of compute, "" where it has
// none: as Strength is told of memory. In mode limit it is library where all are throttled, which
// nobody has seen on a real GPU yet.
func ComputeStrength(g grant.Grant, inv grant.Inventory, p grant.Policy) grant.Strength {
	loose := func(b grant.Binding) bool { return !b.Throttled || b.Strength != grant.StrengthLibrary }
	switch {
	case g.Compute == 0:
		return ""
	case g.Mode == grant.MPS:
		return Strength(g, inv, p)
	case Share(g, p) == 0, len(g.Bindings) == 0 && ComputeUnkept(g, inv, p) != "",
		slices.ContainsFunc(g.Bindings, loose):
		return grant.StrengthNone
	}
	return grant.StrengthLibrary
}
