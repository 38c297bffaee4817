package admission

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// maxLimited is the largest number of GPUs of a grant under the shim (RECORD_DEVICES,
// shim/record.h).
const maxLimited = 16

const noLibraries = "it does not get the driver's libraries, by its image or by NVIDIA_DRIVER_CAPABILITIES"

// WhyNoDriverLimit says why the driver cannot limit the memory of a grant's containers on this
// node; "" if it can.
func WhyNoDriverLimit(g grant.Grant, inv grant.Inventory, p grant.Policy) string {
	switch {
	case p.Enforcement.Limit == grant.LibraryBackend:
		return `enforcement.limit is "library"`
	case inv.Driver.MemoryLimits == "":
		return "this driver is not known to limit memory " +
			"(`gpuledger inventory refresh` asks it)"
	case inv.Driver.MemoryLimits != grant.CanLimit:
		return inv.Driver.MemoryLimits
	case inv.Limiter.Problem != "":
		return inv.Limiter.Problem
	case g.Owner.IsClaim():
		return "the containers of a claim share one limit, and the driver limits each by itself"
	}
	for _, s := range g.GPUs {
		if strings.HasPrefix(s.UUID, "MIG-") {
			return "the driver limits no MIG device"
		}
	}
	return ""
}

// whyNoDriverLimit says why the driver cannot limit this container's memory; "" if it can. A
// container's limit can only be set while it is created.
func whyNoDriverLimit(q *question, g *grant.Grant) string {
	why := WhyNoDriverLimit(*g, q.inventory, q.policy)
	if why == "" && !q.request.CanSetDriverLimit {
		why = "it is not created by gpuledger-runtime, or is restored from a checkpoint: " +
			"only a create has the driver's limit set"
	}
	return why
}

// WhyNoShimLimit says why the shim of this node cannot limit the memory of a grant's containers; ""
// if it can.
func WhyNoShimLimit(gpus int, inv grant.Inventory, p grant.Policy) string {
	hasDriver := slices.ContainsFunc(inv.Driver.Files,
		func(f grant.DriverFile) bool { return f.Bits == 64 && proxyOf(f) == libcuda })
	switch {
	case p.Enforcement.Limit == grant.DriverBackend:
		return `enforcement.limit is "driver"`
	case inv.Shim.Dir == "" && inv.Shim.Problem == "":
		return "the shim is not installed"
	case inv.Shim.Dir == "":
		return inv.Shim.Problem
	case !hasDriver:
		return "no " + libcuda + " was found below inventory.driver_root"
	case gpus > maxLimited:
		return fmt.Sprintf("the shim limits at most %d GPUs", maxLimited)
	}
	return ""
}

// checkLimit finds that this container cannot have the limit that the policy demands.
func checkLimit(q *question, u *grantUse) (found findings) {
	if u.grant.Mode != grant.Limit {
		return nil
	}
	backend, why := q.policy.Enforcement.Limit, ""
	switch {
	case backend == grant.DriverBackend:
		why = u.whyNoDriverLimit
	case backend == grant.LibraryBackend && !u.shimmed:
		if why = WhyNoShimLimit(len(u.grant.GPUs), q.inventory, q.policy); why == "" {
			why = noLibraries
		}
	}
	if why != "" {
		found.explain(grant.LimitUnenforceable, "enforcement.limit", string(backend),
			fmt.Sprintf("cannot be held to the memory of its grant %s: %s", u.id, why),
			"an administrator sees with `gpuledger doctor` what the node lacks, "+
				"or sets enforcement.limit = \"auto\"")
	}
	return found
}
