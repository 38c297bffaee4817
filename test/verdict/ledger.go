package verdict

import (
	"fmt"
	"math/rand/v2"
)

// GenerateLedger plans the grants of a ledger: all modes, owners and states, on a node whose last
// GPU has MIG devices. Ids and secrets are the ledger's to make.
func GenerateLedger(r *rand.Rand, n Node) (grants []Grant) {
	used := map[string]bool{}
	add := func(g Grant) {
		g.Owner = owner(r, used)
		if g.Owner == "bearer" && r.IntN(4) == 0 || g.Owner[0] == 'c' && r.IntN(2) == 0 {
			g.Ties = ties(r)
		}
		switch r.IntN(10) {
		case 0:
			g.Expired = true
		case 1:
			g.Bound, g.Draining = g.Mode != "mps", g.Mode != "mps"
		case 2, 3:
			g.Bound = g.Mode != "mps" // without a daemon nothing can be bound
		}
		if g.Bound && r.IntN(3) == 0 {
			g.Cgroup = fmt.Sprintf("/bound/%d", len(grants))
		}
		grants = append(grants, g)
	}
	shared := []string{"limit", "limit", "limit", "timeslice", "mps"}
	last := ""
	for _, gpu := range n.GPUs {
		if len(gpu.MIG) > 0 {
			for _, m := range gpu.MIG {
				if r.IntN(3) > 0 {
					add(Grant{Mode: "mig", Shares: []Share{{m.UUID, m.Memory}}})
				}
			}
			continue
		}
		mode := shared[r.IntN(len(shared))]
		switch r.IntN(6) {
		case 0:
			last = ""
			continue // a free GPU
		case 1:
			last = ""
			add(Grant{Mode: "exclusive", Shares: []Share{{gpu.UUID, gpu.Memory}}})
			continue
		}
		for range 1 + r.IntN(3) {
			add(Grant{Mode: mode, Compute: []int{0, 0, 30}[r.IntN(3)], Shares: []Share{{gpu.UUID,
				int64(1+r.IntN(4)) << 30}}})
		}
		if mode == last && mode != "mps" && r.IntN(2) == 0 {
			shares := []Share{{n.GPUs[gpu.Index-1].UUID, 1 << 30}, {gpu.UUID, 1 << 30}}
			add(Grant{Mode: mode, Shares: shares})
		}
		last = mode
	}
	return grants
}

// owner is one that has no grant yet, or bearer.
func owner(r *rand.Rand, used map[string]bool) string {
	name := "bearer"
	switch r.IntN(5) {
	case 0, 1:
		pods := Pods()
		name = "pod:" + pods[r.IntN(len(pods))]
	case 2:
		name = fmt.Sprintf("claim:9b7d%04d-0000-4000-8000-000000000000", r.IntN(1000))
	}
	if used[name] {
		return "bearer"
	}
	used[name] = name != "bearer"
	return name
}

func ties(r *rand.Rand) []string {
	pod, namespace := "pod:"+uids[r.IntN(len(uids))], "namespace:"+namespaces[r.IntN(2)]
	return [][]string{{pod}, {namespace}, {pod, namespace}, {pod, "pod:" + uids[0]}}[r.IntN(4)]
}
