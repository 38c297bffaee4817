package admission

import (
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// grantUse is what the use of a grant means for one container on this node: what the container
// gets, and what holds it to the grant. It does not change after useOf.
type grantUse struct {
	grant     *grant.Grant
	id        grant.ID         // of a grant that is adopted now, the id that it will have
	devices   []grant.Device   // the grant's GPUs and MIG devices, as the inventory has them
	display   bool             // it may drive displays
	mpsMounts []*cdispec.Mount // in mode mps

	whyNoDriverLimit string // why the driver cannot limit its memory; "" if it can
	driven           bool   // in mode limit: the driver limits its memory
	throttled        bool   // the shim throttles its launches
	files            []*cdispec.Mount
	shimmed          bool // the shim limits its memory, or in mode mps counts it
	strength         grant.Strength
}

// useOf collects what the container's use of a grant means. The GPUs of the grant that the
// inventory does not have are left out: checkUsable has found them.
func (j *Judge) useOf(q *question, g *grant.Grant) *grantUse {
	u := &grantUse{
		grant:            g,
		id:               g.ID,
		devices:          make([]grant.Device, 0, len(g.GPUs)),
		display:          wantsGraphics(q.request) && g.Mode == grant.Exclusive,
		mpsMounts:        mpsMounts(g, &q.policy),
		whyNoDriverLimit: whyNoDriverLimit(q, g),
		throttled:        ThrottlePercent(*g, q.policy) > 0,
	}
	if u.id == "" {
		u.id = q.view.Fresh
	}
	for _, s := range g.GPUs {
		if d, known := q.inventory.Device(s.UUID); known {
			u.devices = append(u.devices, d)
		}
	}
	u.driven = g.Mode == grant.Limit && u.whyNoDriverLimit == ""
	wanted := wantedBy(&q.request)
	wanted.grant, wanted.throttled = u.id, u.throttled
	wanted.proxies = (g.Mode == grant.Limit && !u.driven || g.Mode == grant.MPS) &&
		WhyNoShimLimit(len(g.GPUs), q.inventory, q.policy) == ""
	u.files = j.plan(wanted, q)
	u.shimmed = hasMount(u.files, realDriver(libcuda))
	u.strength = containerStrength(q, u)
	return u
}

// plan returns the mounts of the driver's files. It plans anew only if something else is wanted
// than in the last decision.
func (j *Judge) plan(wanted wantedFiles, q *question) []*cdispec.Mount {
	if !j.done || !j.wanted.equals(wanted) {
		j.wanted, j.done = wanted, true
		j.files = slices.Clip(driverFiles(wanted, &q.inventory, &q.policy))
	}
	return j.files
}
