package admission

import (
	"fmt"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// weaker says why a container is held to its grant by less than the node gives to grants of its
// kind, which is what people were told when it was granted; "" where it is not.
func (c *asking) weaker() string {
	unused := *c.grant
	unused.Bindings = nil
	told, has := Strength(unused, c.inventory, c.policy), c.strength()
	if has.AtLeast(told) {
		return ""
	}
	return fmt.Sprintf("strength %s, not %s: %s", has, told, c.whyWeaker(told))
}

// tooWeak refuses a container that the policy wants held by more.
func (c *asking) tooWeak(has grant.Strength) {
	c.find(grant.LimitUnenforceable, "strength", string(has))
	if why := c.weaker(); why != "" {
		c.findings[len(c.findings)-1].message += " (" + why + ")"
	}
}

func (c *asking) whyWeaker(told grant.Strength) string {
	const undoes = ", so it can undo what would hold it"
	switch {
	case c.request.Privileged:
		return "the container is privileged" + undoes
	case c.request.SysAdmin:
		return "the container has CAP_SYS_ADMIN" + undoes
	case len(c.request.NodeRoot) > 0:
		return "the container is as good as root on the node by " + grant.Printable(c.request.NodeRoot[0]) +
			undoes
	case told == grant.StrengthDriver:
		return c.driverless()
	}
	return c.unheld()
}

// unheld says why no proxy holds the container, where the node has them.
func (c *asking) unheld() string {
	if c.request.Layout.Lib64 == "" && !c.request.Layout.Unseen {
		return "the image has no C library (64-bit), " +
			"so it gets neither the driver's libraries nor the one that would hold it"
	}
	return "NVIDIA_DRIVER_CAPABILITIES does not ask for compute, " +
		"so the container gets neither the driver's libcuda nor the one that would hold it"
}
