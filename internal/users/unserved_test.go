package users

import (
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

func TestQuotasOfNoUser(t *testing.T) { withoutHaste(quotasOfNoUser)(t) }

func quotasOfNoUser(t *testing.T) {
	const root = " is root, who may request without limit: the quota has no effect"
	const nobody = ` has uid 65534, which the kernel shows for users that it cannot name: the quota has ` +
		`no effect`
	for _, c := range []struct {
		quota             grant.Quota
		unserved, unknown string
	}{
		{grant.Quota{User: "root"}, `user "root"` + root, ""},
		{grant.Quota{User: "0"}, `user "0"` + root, ""},
		{grant.Quota{User: "65534"}, `user "65534"` + nobody, ""},
		{grant.Quota{User: "nobody"}, `user "nobody"` + nobody, ""},
		{grant.Quota{User: "games"}, "", ""},
		{grant.Quota{User: "4242"}, "", ""},
		{grant.Quota{User: Anybody}, "", ""},
		{grant.Quota{Group: Anybody}, "", ""},
		{grant.Quota{Group: "root"}, "", ""}, // its members are other users
		{grant.Quota{User: "no-such-user"}, "", `this node has no user "no-such-user": the quota is skipped`},
		{grant.Quota{Group: "no-such-group"}, "",
			`this node has no group "no-such-group": the quota is skipped`},
	} {
		if got := Unserved(c.quota); got != c.unserved {
			t.Errorf("%s: %q, want %q", c.quota.Whose(), got, c.unserved)
		}
		if got := Unknown(c.quota); got != c.unknown {
			t.Errorf("%s: %q, want %q", c.quota.Whose(), got, c.unknown)
		}
	}
}
