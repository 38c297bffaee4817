package main

import (
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/users"
)

// TestMineSaysWhyThereIsNoQuota: no user reads that the administrator gives nothing where the
// user's groups cannot be read.
func TestMineSaysWhyThereIsNoQuota(t *testing.T) {
	for problem, want := range map[string]string{"": "nothing without the administrator",
		"the groups cannot be read": "nothing now: the groups cannot be read\n"} {
		v := view{asked: &users.NodeView{User: 60001, QuotaProblem: problem}}
		var text strings.Builder
		if err := printMine(&text, mineOf(v), v); err != nil || !strings.Contains(text.String(), want) {
			t.Errorf("%v\n%s", err, text.String())
		}
	}
}

// TestRootOfAContainerHasNoGrants: gpuledgerd shows uid 0 all grants as another's, without their
// users.
func TestRootOfAContainerHasNoGrants(t *testing.T) {
	others := grant.Grant{ID: "g-abcdefghijkl", GPUs: []grant.Share{{UUID: "GPU-0", Memory: grant.GiB}}}
	own := others
	own.User = 60001
	for user, want := range map[uint32]int{0: 0, 60001: 1} {
		v := view{asked: &users.NodeView{User: user}}
		v.Grants = []grant.Grant{others, own}
		m := mineOf(v)
		if len(m.Grants) != want || m.GPUs != want || m.Memory != grant.Bytes(want)*grant.GiB {
			t.Errorf("user %d has %+v", user, m)
		}
	}
}
