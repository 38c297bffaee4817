package admission

import (
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// StrengthOf returns the strength that a mode alone gives a grant. In mode limit it depends on the
// node (Strength).
func StrengthOf(mode grant.Mode) grant.Strength {
	switch mode {
	case grant.MIG:
		return grant.StrengthHardware
	case grant.MPS:
		return grant.StrengthServer
	}
	return grant.StrengthNone
}

// Strength returns what holds the containers of a grant to it: the weakest strength that one of
// them has. For a grant that no container uses, it is what this node would give the next one.
func Strength(g grant.Grant, inv grant.Inventory, p grant.Policy) grant.Strength {
	if len(g.Bindings) == 0 {
		switch {
		case g.Mode == grant.Limit && WhyNoDriverLimit(g, inv, p) == "":
			return grant.StrengthDriver
		case g.Mode == grant.Limit && WhyNoShimLimit(len(g.GPUs), inv, p) == "":
			return grant.StrengthLibrary
		}
		return g.Strength
	}
	weakest := grant.StrengthHardware
	for _, b := range g.Bindings {
		if b.Strength == "" { // recorded by a version that limited nothing
			b.Strength = g.Strength
		}
		if !b.Strength.AtLeast(weakest) {
			weakest = b.Strength
		}
	}
	return weakest
}

// ComputeStrength returns what holds the containers of a grant to its share of compute; "" if it
// has none. In mode limit it is library if all are throttled (how well they are:
// docs/gpu-results.md).
func ComputeStrength(g grant.Grant, inv grant.Inventory, p grant.Policy) grant.Strength {
	unthrottled := func(b grant.Binding) bool { return !b.Throttled || b.Strength != grant.StrengthLibrary }
	switch {
	case g.Compute == 0:
		return ""
	case g.Mode == grant.MPS:
		return Strength(g, inv, p)
	case ThrottlePercent(g, p) == 0,
		len(g.Bindings) == 0 && WhyNoComputeShare(g, inv, p) != "",
		slices.ContainsFunc(g.Bindings, unthrottled):
		return grant.StrengthNone
	}
	return grant.StrengthLibrary
}

// containerStrength returns what holds this container to its grant. A container that can undo what
// enforces the grant is held by nothing.
func containerStrength(q *question, u *grantUse) grant.Strength {
	switch {
	case canUndo(q):
		return grant.StrengthNone
	case u.driven:
		return grant.StrengthDriver
	case u.shimmed && u.grant.Mode == grant.Limit:
		return grant.StrengthLibrary
	}
	return u.grant.Strength
}

// canUndo reports whether the container can undo what enforces a grant.
func canUndo(q *question) bool {
	return q.request.Privileged || q.request.SysAdmin || len(q.request.NodeRoot) > 0
}

// checkStrength finds that the container is held to its grant by less than the policy or the grant
// demands. An ordinary container with an exclusive grant has all of its GPUs, so there is nothing
// to enforce: the device cgroup denies it the others.
func checkStrength(q *question, u *grantUse) (found findings) {
	enough := u.strength.AtLeast(q.policy.Rules.MinimumStrength) &&
		u.strength.AtLeast(u.grant.MinimumStrength)
	if enough || u.grant.Mode == grant.Exclusive && !canUndo(q) {
		return nil
	}
	message, hint := "", ""
	if why := weakerThanListed(q, u); why != "" {
		detail := grant.Detail{Vector: "strength", Value: string(u.strength), Code: grant.LimitUnenforceable}
		message, hint = sentenceOf(detail, u.grant)
		message += " (" + why + ")"
	}
	found.explain(grant.LimitUnenforceable, "strength", string(u.strength), message, hint)
	return found
}

// weakerThanListed says why the container is held to its grant by less than the strength that
// listings show for the grant; "" if it is not.
func weakerThanListed(q *question, u *grantUse) string {
	unused := *u.grant
	unused.Bindings = nil
	listed := Strength(unused, q.inventory, q.policy)
	if u.strength.AtLeast(listed) {
		return ""
	}
	return fmt.Sprintf("strength %s, not %s: %s", u.strength, listed, whyWeaker(q, u, listed))
}

func whyWeaker(q *question, u *grantUse, listed grant.Strength) string {
	const undoes = ", so it can undo what would hold it"
	switch {
	case q.request.Privileged:
		return "the container is privileged" + undoes
	case q.request.SysAdmin:
		return "the container has CAP_SYS_ADMIN" + undoes
	case len(q.request.NodeRoot) > 0:
		return "the container is as good as root on the node by " +
			grant.Printable(q.request.NodeRoot[0]) + undoes
	case listed == grant.StrengthDriver:
		return u.whyNoDriverLimit
	case q.request.Layout.Lib64 == "" && !q.request.Layout.Unseen:
		return "the image has no C library (64-bit), " +
			"so it gets neither the driver's libraries nor the one that would hold it"
	}
	return "NVIDIA_DRIVER_CAPABILITIES does not ask for compute, " +
		"so the container gets neither the driver's libcuda nor the one that would hold it"
}
