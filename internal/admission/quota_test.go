package admission

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestEveryQuotaBoundsGrants: a quota that does not say how many grants a user may have is for 64.
func TestEveryQuotaBoundsGrants(t *testing.T) {
	v := grant.View{}
	for i := range 100 {
		v.Grants = append(v.Grants, grant.Grant{ID: grant.ID(fmt.Sprint(i)), User: 1001})
	}
	for _, c := range []struct{ quota, has, most int }{{0, 63, 64}, {0, 64, 64}, {100, 64, 100},
		{100, 100, 100}, {2, 1, 2}, {2, 2, 2}} {
		ask := Ask{User: 1001, Quota: &grant.Quota{User: "1001", Grants: c.quota}}
		err := ask.checkQuota(nil, "", grant.View{Grants: v.Grants[:c.has]})
		var r *grant.Refusal
		switch {
		case c.has < c.most && err != nil:
			t.Errorf("quota %d, %d grants: %v", c.quota, c.has, err)
		case c.has == c.most && (!errors.As(err, &r) || r.Code != grant.QuotaExceeded ||
			!strings.Contains(r.Message, fmt.Sprintf("is %d grants, and all of them", c.most))):
			t.Errorf("quota %d, %d grants: %v, want a refusal", c.quota, c.has, err)
		}
	}
}

// TestHintsOfAQuota: the hint names what helps.
func TestHintsOfAQuota(t *testing.T) {
	quota := &grant.Quota{User: "1001", Memory: grant.Size(4 * grant.GiB)}
	damaged := grant.View{Damaged: []grant.Damage{{}}}
	for name, c := range map[string]struct {
		ask  Ask
		view grant.View
		want string
	}{
		"another mode": {Ask{Mode: grant.MPS}, grant.View{}, "ask for what the quota allows; the " +
			"administrator sets what users may have in [[quota]] (" + grant.Docs + "users.md)"},
		"a damaged entry": {Ask{Mode: grant.Limit}, damaged,
			"the administrator finds the entry with `gpuledger check`"},
	} {
		c.ask.User, c.ask.Quota = 1001, quota
		err := c.ask.WithinQuota(nil, "", c.view)
		var r *grant.Refusal
		if !errors.As(err, &r) || r.Hint != c.want {
			t.Errorf("%s: got %#v, want the hint %s", name, err, c.want)
		}
	}
}
