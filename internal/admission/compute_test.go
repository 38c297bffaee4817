package admission

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestAShareOfComputeThatNothingKeeps: mode limit counts it, and where the policy wants more than a number it is refused: to who asks for
// it, to whom a scheduler allocated it, and to a container whose grant is older than the policy.
func TestAShareOfComputeThatNothingKeeps(t *testing.T) {
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
			_, err := Place(Ask{Memory: grant.GiB, Mode: c.mode, Compute: c.compute, Owner: grant.Bearer}, "", grant.View{}, inventory(1), c.policy)
			var refusal *grant.Refusal
			switch {
			case c.why == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.why != "" && (!errors.As(err, &refusal) || refusal.Code != grant.LimitUnenforceable || !strings.Contains(refusal.Message, c.why) || !strings.Contains(refusal.Hint, "mode mps")):
				t.Errorf("got %v, want it refused because %s", err, c.why)
			}
		})
	}

	w := adopting(grant.Allocation{GPUs: []string{"0"}, Memory: grant.GiB, Compute: 30})
	w.p.Enforcement = refuse.Enforcement
	if v := w.decide(); v.Code != grant.LimitUnenforceable || !strings.Contains(v.Message, "is allocated 30% of a GPU's compute by annotation a") || !strings.Contains(v.Hint, "mps") {
		t.Errorf("an allocation: %+v", v)
	}
	w.r.Allocations[0].Compute = 0
	if v := w.decide(); v.Kind != grant.Admit {
		t.Errorf("an allocation without compute: %+v", v)
	}

	g := limitGrant
	g.Compute = 30
	if v := ofLimit(grant.Request{}, g, shimmed(), refuse); v.Code != grant.LimitUnenforceable || !strings.Contains(v.Message, "holds grant g-abcdefghijkl with 30% of the compute, which cannot be kept") {
		t.Errorf("a grant that is older than the policy: %+v", v)
	}
	if v := ofLimit(grant.Request{}, g, shimmed(), grant.Policy{}); v.Kind != grant.Admit {
		t.Errorf("a grant that is counted: %+v", v)
	}
	if v := ofLimit(grant.Request{}, limitGrant, shimmed(), refuse); v.Kind != grant.Admit {
		t.Errorf("a grant without compute: %+v", v)
	}
}
