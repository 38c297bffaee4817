//go:build e2e

package e2e

import (
	"github.com/gpuledger/gpuledger/internal/grant"
)

// pod runs the containers of one pod. One has a grant that nothing in its bundle names: its
// identity is enough, also after a restart. The other containers cannot use that grant.
func pod(s *site, k kubelet) {
	c := container{name: "together", script: probe}
	g := s.granted("--memory", "4GiB", "--gpu", "1", "--owner", k.owner(c))
	for part, reference := range map[string]string{
		"sidecar": string(g.ID), "forger": g.String() + ".0123456789abcdef0123456789abcdef"} {
		c.part = part
		k.refer(&c, reference) // the pod's annotations are on all its containers
	}
	id, r := k.pod(s, c)
	if r.Code != 0 {
		s.T.Fatalf("got %+v, want a pod", r)
	}
	defer s.command(crictl, "rmp", "--force", id)

	c.part = "init"
	if r := k.runIn(s, id, c); r.Code != 0 || r.Stdout != nothing {
		s.T.Errorf("the init container: got %+v, want it to reach nothing", r)
	} else {
		s.untouched(r)
	}
	for c.attempt = range 2 {
		c.part = ""
		if r := k.runIn(s, id, c); r.Code != 0 || r.Stdout != gpu1 {
			s.T.Errorf("the main container, attempt %d: got %+v, want it to reach its GPU\n%s",
				c.attempt, r, gpu1)
		}
		eventually(s.T, "the grant is free again", func() bool { return s.State(g.ID) == grant.Free })
	}
	c.part = "sidecar"
	isRefused(s.T, k.runIn(s, id, c), grant.GrantOwnerMismatch, "another owner")
	c.part = "forger"
	isRefused(s.T, k.runIn(s, id, c), grant.GrantOwnerMismatch, "another owner")
}
