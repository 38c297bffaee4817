package campaign

import (
	"maps"
	"sync"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// releases is what the campaign knows of the ends of grants.
type releases struct {
	mu     sync.Mutex
	done   map[grant.ID]bool // those whose release was acknowledged
	maybe  map[grant.ID]bool // those that may be left: a program was killed, or failed under a fault
	labels map[string]bool   // labels of which such grants could not be listed
}

func newReleases() *releases {
	return &releases{done: map[grant.ID]bool{}, maybe: map[grant.ID]bool{}, labels: map[string]bool{}}
}

// releaseGrant has gpuledger release a grant, and notes whether it may be left.
func (c *campaign) releaseGrant(id grant.ID) rig.Result {
	r := c.node.CLI("release", string(id))
	if r.Code == 0 {
		c.releases.acknowledged(id)
	} else {
		c.releases.mayBeLeft(id)
	}
	return r
}

func (r *releases) acknowledged(id grant.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done[id] = true
}

// mayBeLeft excuses a grant.
func (r *releases) mayBeLeft(id grant.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.maybe[id] = true
}

// someMayBeLeft excuses the grants of a label.
func (r *releases) someMayBeLeft(label string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.labels[label] = true
}

// excused reports whether a grant may be there although no container and no worker has it.
func (r *releases) excused(g listed) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return g.Source != grant.Asked && !r.done[g.ID] && (r.maybe[g.ID] || r.labels[g.Label])
}

// forgive ends the excuses: nothing is left now.
func (r *releases) forgive() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.maybe)
	clear(r.labels)
}

// now are the grants whose release was acknowledged so far. A listing that begins later has none of
// them, except for a container that still runs.
func (r *releases) now() map[grant.ID]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.done)
}

// neverBack finds released grants that a listing has as if they were not.
func (c *campaign) neverBack(released map[grant.ID]bool, grants []listed) {
	for _, g := range grants {
		if released[g.ID] && (g.State == grant.Free || g.State == grant.Bound) {
			c.violation("grant %s of %s was released, and is %s", g.ID, g.Label, g.State)
		}
	}
}
