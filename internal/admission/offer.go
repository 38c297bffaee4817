package admission

import (
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Offer returns the verdict on a container that asks for nothing but the grant. It is what can be
// written ahead of time, as in a CDI file. It is no admission: the container is judged by its own
// spec when it is created. A container that already uses the grant does not matter here.
func Offer(g grant.Grant, now time.Time, inv grant.Inventory, p grant.Policy) grant.Verdict {
	g.Bindings = nil
	r := unseen
	r.Container.ID = string(g.ID)
	v := grant.View{Now: now, MPS: []grant.MPSDaemon{readyDaemon(g)}}
	var j Judge
	return j.decideWithGrant(&question{request: r, view: v, inventory: inv, policy: p}, resolution{grant: &g})
}

// readyDaemon returns an MPS daemon that could serve the grant: there is none yet.
func readyDaemon(g grant.Grant) grant.MPSDaemon {
	m := grant.MPSDaemon{GPUs: g.UUIDs(), Limits: map[string]grant.Bytes{}, Threads: 100}
	for _, s := range g.GPUs {
		m.Limits[s.UUID] = s.Memory
	}
	return m
}
