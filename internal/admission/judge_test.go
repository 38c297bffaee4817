package admission

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestADecisionDoesNotDependOnTheLastOne tests that a Judge keeps nothing from one decision for the
// next. Each case changes something that the driver's files depend on.
func TestADecisionDoesNotDependOnTheLastOne(t *testing.T) {
	image := grant.Layout{Lib64: "/img/lib", Lib32: "/img/lib32"}
	compute := []grant.Capability{grant.Compute}
	type asked struct {
		request grant.Request
		mode    grant.Mode
		id      grant.ID
	}
	base := asked{grant.Request{Layout: image, Capabilities: compute}, grant.Limit, limitGrant.ID}
	cases := []asked{base}
	for _, change := range []func(*asked){
		func(c *asked) { c.request.Capabilities = nil },
		func(c *asked) { c.request.Capabilities = []grant.Capability{grant.Utility} },
		func(c *asked) { c.request.Compat32 = true },
		func(c *asked) { c.request.Layout.Lib64 = "/elsewhere" },
		func(c *asked) {
			c.request.Own = []grant.OwnLibrary{{Place: "/compat/libcuda.so.1", Name: "libcuda.so.1"}}
		},
		func(c *asked) { c.mode = grant.Timeslice },
		func(c *asked) { c.mode, c.request.Compat32 = grant.Timeslice, true },
		func(c *asked) { c.id = "g-otherotherot" },
	} {
		other := base
		change(&other)
		cases = append(cases, other)
	}
	decide := func(j *Judge, c asked) grant.Verdict {
		g := limitGrant
		g.ID, g.Mode, g.Secret = c.id, c.mode, grant.SecretHash(secret)
		r := c.request
		r.References = []grant.Mention{{Source: "env:GPULEDGER_GRANT", Asks: true,
			Reference: grant.Reference{ID: g.ID, Secret: secret}}}
		return j.Decide(r, grant.View{Now: now, Grants: []grant.Grant{g}}, shimmed(),
			grant.Policy{RunDir: "/run/g"})
	}
	seen := map[string]bool{}
	for i, first := range cases {
		for k, second := range cases {
			j, want := new(Judge), decide(new(Judge), second)
			decide(j, first)
			if got := decide(j, second); want.Kind != grant.Admit || !reflect.DeepEqual(got, want) {
				t.Errorf("case %d after %d: %s with %v, alone %s with %v", k, i, got.Kind,
					places(got.Edits.Mounts), want.Kind, places(want.Edits.Mounts))
			}
			seen[fmt.Sprint(places(want.Edits.Mounts))] = true
		}
	}
	if len(seen) < len(cases)-1 { // 32-bit libraries are mounted only without a limit
		t.Errorf("%d cases have only %d sets of files", len(cases), len(seen))
	}
}
