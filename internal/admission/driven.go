package admission

import (
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Driverless says why the driver cannot hold a container of a grant to its memory on this node; ""
// where it can.
func Driverless(g grant.Grant, inv grant.Inventory, p grant.Policy) string {
	switch {
	case p.Enforcement.Limit == grant.LibraryBackend:
		return `enforcement.limit is "library"`
	case inv.Driver.MemoryLimits == "":
		return "the inventory does not say that the driver can limit memory (`gpuledger inventory " +
			"refresh` asks it)"
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

// driverless is Driverless for this container. Its limit is set while it is being created, or
// never.
func (c *asking) driverless() string {
	why := Driverless(*c.grant, c.inventory, c.policy)
	if why == "" && !c.request.Drivable {
		why = "it is not created by gpuledger-runtime, or is restored from a checkpoint: only a create has " +
			"the driver's limit set"
	}
	return why
}

// driven reports whether the driver limits the container.
func (c *asking) driven() bool {
	return c.grant.Mode == grant.Limit && c.driverless() == ""
}
