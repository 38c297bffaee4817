package admission

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestAShareOfComputeThatIsNotEnforced tests that mode limit only counts a share of compute. If the
// policy wants it enforced, it is refused: to a caller that requests it, to a container to which a
// scheduler allocated it, and to a container whose grant is older than the policy.
func TestAShareOfComputeThatIsNotEnforced(t *testing.T) {
	refuse := grant.Policy{Enforcement: grant.Enforcement{Compute: grant.RefuseShare}}
	strong := grant.Policy{Rules: grant.Rules{MinimumStrength: grant.StrengthLibrary}}
	for name, c := range map[string]struct {
		policy  grant.Policy
		mode    grant.Mode
		compute int
		why     string // "": it is granted
	}{
		"counted":                         {grant.Policy{}, grant.Limit, 30, ""},
		"counted by the default policy":   {grant.Policy{Rules: grant.Rules{MinimumStrength: grant.StrengthNone}, Enforcement: grant.Enforcement{Compute: grant.CountShare}}, grant.Limit, 30, ""},
		"refused by choice":               {refuse, grant.Limit, 30, `enforcement.compute is "refuse"`},
		"not strong enough":               {strong, grant.Limit, 30, `policy.minimum_strength is "library"`},
		"no share":                        {refuse, grant.Limit, 0, ""},
		"no share, and strength wanted":   {strong, grant.Limit, 0, ""},
		"mode mps keeps it":               {refuse, grant.MPS, 30, ""},
		"mode timeslice promises nothing": {refuse, grant.Timeslice, 30, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Place(Ask{Memory: grant.GiB, Mode: c.mode, Compute: c.compute, Owner: grant.Bearer},
				"", grant.View{}, inventory(1), c.policy)
			var refusal *grant.Refusal
			switch {
			case c.why == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.why != "" && (!errors.As(err, &refusal) || refusal.Code != grant.LimitUnenforceable ||
				!strings.Contains(refusal.Message, c.why) || !strings.Contains(refusal.Hint, "mode mps")):
				t.Errorf("got %v, want it refused because %s", err, c.why)
			}
		})
	}

	w := adopting(grant.Allocation{GPUs: []string{"0"}, Memory: grant.GiB, Compute: 30})
	w.p.Enforcement = refuse.Enforcement
	if v := w.decide(); v.Code != grant.LimitUnenforceable ||
		!strings.Contains(v.Message, "is allocated 30% of a GPU's compute by annotation a") ||
		!strings.Contains(v.Hint, "mps") {
		t.Errorf("an allocation: %+v", v)
	}
	w.r.Allocations[0].Compute = 0
	if v := w.decide(); v.Kind != grant.Admit {
		t.Errorf("an allocation without compute: %+v", v)
	}

	g := limitGrant
	g.Compute = 30
	if v := ofLimit(grant.Request{}, g, shimmed(), refuse); v.Code != grant.LimitUnenforceable ||
		!strings.Contains(v.Message, "holds grant g-abcdefghijkl with 30% of the compute, which "+
			"cannot be kept") {
		t.Errorf("a grant that is older than the policy: %+v", v)
	}
	if v := ofLimit(grant.Request{}, g, shimmed(), grant.Policy{}); v.Kind != grant.Admit {
		t.Errorf("a grant that is counted: %+v", v)
	}
	if v := ofLimit(grant.Request{}, limitGrant, shimmed(), refuse); v.Kind != grant.Admit {
		t.Errorf("a grant without compute: %+v", v)
	}
}

// TestAThrottledShareOfCompute tests that a container with a share gets the proxy that throttles
// under every name of libcuda, and that all others get the other proxy. If there is no such proxy,
// the share is refused, and nothing else is.
func TestAThrottledShareOfCompute(t *testing.T) {
	throttle := grant.Policy{Enforcement: grant.Enforcement{Compute: grant.ThrottleShare}}
	able := shimmed()
	able.Shim.Throttle = true
	shared := limitGrant
	shared.Compute = 30
	proxies := func(v grant.Verdict) (throttling, plain, nvml int) {
		for _, m := range v.Edits.Mounts {
			switch m.HostPath {
			case "/shim/libcuda-throttle.so.1":
				throttling++
			case "/shim/libcuda.so.1":
				plain++
			case "/shim/libnvidia-ml.so.1":
				nvml++
			}
		}
		return throttling, plain, nvml
	}
	own := grant.Request{Capabilities: []grant.Capability{grant.Compute, grant.Utility},
		Layout: grant.Layout{Lib64: "/l"}, Own: []grant.OwnLibrary{
			{Place: "/opt/libcuda.so.1", Name: "libcuda.so.1"},
			{Place: "/opt/libnvidia-ml.so.1", Name: "libnvidia-ml.so.1"}}}
	mps := shared
	mps.Mode = grant.MPS
	for name, c := range map[string]struct {
		g        grant.Grant
		p        grant.Policy
		throttle bool
	}{
		"a share":                {shared, throttle, true},
		"no share":               {limitGrant, throttle, false},
		"a share in a statement": {shared, grant.Policy{}, false},
		"a share in mode mps":    {mps, throttle, false},
		"a share of everything":  {func() grant.Grant { g := shared; g.Compute = 100; return g }(), throttle, true},
	} {
		v := ofLimit(own, c.g, able, c.p)
		if c.g.Mode == grant.MPS { // without a daemon it is refused, with the same files
			v = grant.Verdict{Kind: grant.Admit}
			v.Edits.Mounts = new(Judge).useOf(&question{request: own, inventory: able, policy: c.p},
				&c.g).files
		}
		throttling, plain, nvml := proxies(v)
		if v.Kind != grant.Admit || (throttling > 1) != c.throttle || (plain > 1) == c.throttle ||
			nvml != 2 || v.Throttled != c.throttle {
			t.Errorf("%s: %s %s, throttled %t: %d of the proxy that throttles, %d of the other, %d of NVML's",
				name, v.Kind, v.Message, v.Throttled, throttling, plain, nvml)
		}
	}

	var j Judge // it keeps the files of its last decision
	for _, g := range []grant.Grant{limitGrant, shared, limitGrant} {
		v := judgeLimit(&j, own, g, able, throttle)
		if throttling, plain, _ := proxies(v); (throttling > 0) != (g.Compute > 0) ||
			(plain > 0) == (g.Compute > 0) {
			t.Errorf("%d%% after another: %d of the proxy that throttles, %d of the other", g.Compute,
				throttling, plain)
		}
	}

	driven := able
	driven.Driver.MemoryLimits = grant.CanLimit
	for name, c := range map[string]struct {
		inv     grant.Inventory
		owner   grant.Owner
		why     string
		minimum grant.Strength
	}{
		"it can be":                  {inv: able},
		"an old shim":                {inv: shimmed(), why: "launches cannot be throttled: the shim in /shim has no libcuda-throttle.so.1"},
		"no shim":                    {inv: inventory(1), why: "launches cannot be throttled: the shim is not installed"},
		"the driver limits":          {inv: driven, why: `only the shim throttles (enforcement.limit = "library" uses it)`},
		"a claim, which it does not": {inv: driven, owner: "claim:u"},
		"strong enough":              {inv: able, minimum: grant.StrengthLibrary},
		"too weak":                   {inv: able, minimum: grant.StrengthServer, why: `a throttle of launches has strength library, and policy.minimum_strength is "server"`},
	} {
		p := throttle
		p.Rules.MinimumStrength = c.minimum
		if c.owner == "" {
			c.owner = grant.Bearer
		}
		for i := range c.inv.GPUs {
			c.inv.GPUs[i].Memory = 8 * grant.GiB
		}
		ask := Ask{Memory: grant.GiB, Mode: grant.Limit, Compute: 30, Owner: c.owner}
		_, err := Place(ask, "", grant.View{}, c.inv, p)
		var refusal *grant.Refusal
		switch {
		case c.why == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.why != "" && (!errors.As(err, &refusal) || refusal.Code != grant.LimitUnenforceable ||
			!strings.Contains(refusal.Message, c.why)):
			t.Errorf("%s: %v, want it refused because %s", name, err, c.why)
		}
		if ask.Compute = 0; c.why != "" {
			if _, err := Place(ask, "", grant.View{}, c.inv, p); err != nil {
				t.Errorf("%s, without a share: %v", name, err)
			}
		}
	}
	if v := ofLimit(grant.Request{}, shared, able, throttle); v.Code != grant.LimitUnenforceable ||
		!strings.Contains(v.Message, "it does not get the driver's libraries") {
		t.Errorf("a container without libcuda: %+v", v)
	}
	if v := ofLimit(grant.Request{}, shared, shimmed(), throttle); v.Code != grant.LimitUnenforceable ||
		!strings.Contains(v.Message, "holds grant g-abcdefghijkl with 30% of the compute, which cannot be "+
			"kept: launches cannot be throttled") {
		t.Errorf("a container on a node that lost the library: %+v", v)
	}
}

// TestTheStrengthOfAShare tests that the strength of a share is that of the weakest container, and
// without containers that of the next one, as for memory.
func TestTheStrengthOfAShare(t *testing.T) {
	throttle := grant.Policy{Enforcement: grant.Enforcement{Compute: grant.ThrottleShare}}
	able := shimmed()
	able.Shim.Throttle = true
	held, loose := grant.Binding{Strength: grant.StrengthLibrary, Throttled: true},
		grant.Binding{Strength: grant.StrengthLibrary}
	privileged := grant.Binding{Strength: grant.StrengthNone, Throttled: true}
	for name, c := range map[string]struct {
		mode     grant.Mode
		compute  int
		inv      grant.Inventory
		p        grant.Policy
		bindings []grant.Binding
		want     grant.Strength
	}{
		"no share":                  {grant.Limit, 0, able, throttle, nil, ""},
		"the next is throttled":     {grant.Limit, 30, able, throttle, nil, grant.StrengthLibrary},
		"the next cannot be":        {grant.Limit, 30, shimmed(), throttle, nil, grant.StrengthNone},
		"counted":                   {grant.Limit, 30, able, grant.Policy{}, []grant.Binding{held}, grant.StrengthNone},
		"throttled":                 {grant.Limit, 30, able, throttle, []grant.Binding{held, held}, grant.StrengthLibrary},
		"one is not":                {grant.Limit, 30, able, throttle, []grant.Binding{held, loose}, grant.StrengthNone},
		"one can undo it":           {grant.Limit, 30, able, throttle, []grant.Binding{privileged}, grant.StrengthNone},
		"mode timeslice":            {grant.Timeslice, 30, able, throttle, nil, grant.StrengthNone},
		"mode mps has its server's": {grant.MPS, 30, able, throttle, []grant.Binding{{Strength: grant.StrengthServer}}, grant.StrengthServer},
	} {
		g := grant.Grant{Mode: c.mode, Compute: c.compute, GPUs: limitGrant.GPUs, Owner: grant.Bearer,
			Bindings: c.bindings}
		if got := ComputeStrength(g, c.inv, c.p); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
