package admission

import (
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Offer is the verdict on a container that asks for nothing but the grant: what can be written down
// for it ahead of time, as a CDI file does. It is no admission: the container that comes is judged
// by its own spec. A container that uses the grant already stands in nobody's way here.
func Offer(g grant.Grant, now time.Time, inv grant.Inventory, p grant.Policy) grant.Verdict {
	g.Bindings = nil
	r := unseen
	r.Container.ID = string(g.ID)
	c := newCase(r, grant.View{Now: now, MPS: []grant.MPSDaemon{assumed(g)}}, inv, p)
	c.grant = &g
	return c.granted()
}
