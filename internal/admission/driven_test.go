package admission

import (
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// limiting is shimmed with a driver that can limit memory, and with the hook that requests such
// limits.
func limiting() grant.Inventory {
	inv := shimmed()
	inv.Driver.MemoryLimits = grant.CanLimit
	inv.Limiter = grant.Limiter{Hook: "/usr/bin/gpuledger-hook", Env: "GPULEDGER_CONFIG=/etc/g.toml"}
	return inv
}

// TestTheDriverComesBeforeTheShim tests that the driver limits the memory if it can, without the
// shim. If it cannot, the shim limits it, or with "driver" the container is refused.
func TestTheDriverComesBeforeTheShim(t *testing.T) {
	claim, mig, timeslice, two := limitGrant, limitGrant, limitGrant, limitGrant
	claim.Owner = "claim:c"
	mig.GPUs = []grant.Share{{UUID: "MIG-0", Memory: grant.GiB, Profile: "1g.10gb"}}
	timeslice.Mode = grant.Timeslice
	two.Bindings = []grant.Binding{{Strength: grant.StrengthDriver, Driven: true}}
	with := func(change func(*grant.Inventory)) grant.Inventory {
		inv := limiting()
		change(&inv)
		return inv
	}
	old := with(func(inv *grant.Inventory) { inv.Driver.MemoryLimits = "driver 580 does not limit memory" })
	unasked := with(func(inv *grant.Inventory) { inv.Driver.MemoryLimits = "" })
	noDaemon := with(func(inv *grant.Inventory) { inv.Limiter.Problem = "gpuledgerd does not answer" })
	unshimmed := with(func(inv *grant.Inventory) { inv.Shim = grant.Shim{} })
	asks := grant.Request{Layout: grant.Layout{Lib64: "/img/lib"}, Capabilities: []grant.Capability{
		grant.Compute}, CanSetDriverLimit: true}
	late, bare, admin := asks, asks, asks
	late.CanSetDriverLimit, bare.Layout, admin.SysAdmin = false, grant.Layout{}, true
	for name, c := range map[string]struct {
		request  grant.Request
		grant    grant.Grant
		inv      grant.Inventory
		strength grant.Strength // with auto
		why      string         // why not the driver
	}{
		"as it should be":          {asks, limitGrant, limiting(), grant.StrengthDriver, ""},
		"without the shim":         {asks, limitGrant, unshimmed, grant.StrengthDriver, ""},
		"an image without libc":    {bare, limitGrant, limiting(), grant.StrengthDriver, ""},
		"with CAP_SYS_ADMIN":       {admin, limitGrant, limiting(), grant.StrengthNone, ""},
		"an old driver":            {asks, limitGrant, old, grant.StrengthLibrary, "driver 580 does not limit memory"},
		"the driver was not asked": {asks, limitGrant, unasked, grant.StrengthLibrary, "not known to limit memory"},
		"no gpuledgerd":            {asks, limitGrant, noDaemon, grant.StrengthLibrary, "gpuledgerd does not answer"},
		"no wrapper":               {late, limitGrant, limiting(), grant.StrengthLibrary, "it is not created by gpuledger-runtime"},
		"a claim":                  {asks, claim, limiting(), grant.StrengthLibrary, "share one limit"},
		"a MIG device":             {asks, mig, limiting(), grant.StrengthLibrary, "the driver limits no MIG device"},
		"mode timeslice":           {asks, timeslice, limiting(), grant.StrengthNone, ""},
		"neither driver nor lib":   {bare, limitGrant, old, grant.StrengthNone, "driver 580"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.grant.GPUs[0].Profile != "" {
				c.inv.GPUs = []grant.GPU{{UUID: "GPU-0", Health: grant.Healthy,
					MIG: []grant.MIGDevice{{UUID: "MIG-0", Caps: [2]int{1, 2}}}}}
			}
			v := ofLimit(c.request, c.grant, c.inv, grant.Policy{
				Enforcement: grant.Enforcement{Limit: grant.AutoBackend}})
			driven := c.why == "" && c.grant.Mode == grant.Limit
			if v.Kind != grant.Admit || v.Strength != c.strength || v.Driven != driven ||
				v.Driven && v.Limited || len(v.Edits.Hooks) != map[bool]int{true: 1}[driven] {
				t.Errorf("auto: %s (%s), strength %s, driven %t, limited %t, hooks %v", v.Kind, v.Message,
					v.Strength, v.Driven, v.Limited, v.Edits.Hooks)
			}
			v = ofLimit(c.request, c.grant, c.inv, grant.Policy{
				Enforcement: grant.Enforcement{Limit: grant.DriverBackend}})
			if refused := c.why != ""; refused != (v.Code == grant.LimitUnenforceable) ||
				!strings.Contains(v.Message, c.why) || v.Limited {
				t.Errorf("driver: %s %s (%s)", v.Kind, v.Code, v.Message)
			}
			v = ofLimit(c.request, c.grant, c.inv, grant.Policy{
				Enforcement: grant.Enforcement{Limit: grant.LibraryBackend}})
			if v.Driven || len(v.Edits.Hooks) > 0 {
				t.Errorf("library: %+v", v.Edits.Hooks)
			}
			minimum := grant.Policy{Rules: grant.Rules{MinimumStrength: grant.StrengthDriver}}
			v = ofLimit(c.request, c.grant, c.inv, minimum)
			if (v.Code == grant.LimitUnenforceable) == (c.strength == grant.StrengthDriver) {
				t.Errorf("minimum driver: %s %s", v.Kind, v.Code)
			}
		})
	}
	if got := Strength(limitGrant, limiting(), grant.Policy{}); got != grant.StrengthDriver {
		t.Errorf("a free grant has %s", got)
	}
	if got := Strength(two, old, grant.Policy{}); got != grant.StrengthDriver {
		t.Errorf("one that is held has %s", got)
	}
}
