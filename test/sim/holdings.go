package sim

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/limits"
	"github.com/gpuledger/gpuledger/internal/node"
)

// holding is what the holder of a grant knows of it: a virtual administrator, or a user.
type holding struct {
	label     string
	id        grant.ID
	reference grant.Reference
	pod       string        // whose container c owns it; "": it has a bearer
	possible  []grant.Bytes // its memory, as acknowledged or as tried since
	expires   time.Time
	acked     bool // the ledger has said that it is there
	busy      bool // a process changes it
	over      bool // a release was tried
	released  bool // and acknowledged

	user uint32 // who has asked for it
}

func (h *holding) owner() grant.Owner {
	if h.pod == "" {
		return grant.Bearer
	}
	return grant.PodOwner(h.pod, "c")
}

// annotations are those of a container that may use the grant: a pod's container proves that by
// what it is, any other one by the reference.
func (h *holding) annotations() string {
	if h.pod == "" {
		return fmt.Sprintf(`"gpuledger.dev/grant":%q`, h.reference)
	}
	return identity(h.pod)
}

// answered is when the holder of a grant reads whether it was released. After an error it stands,
// if the disk has failed only once.
func (h *holding) answered(p *process, err error) {
	var gone *grant.NotFoundError
	h.busy, h.released = false, err == nil || errors.As(err, &gone)
	h.over = h.released || p.faults > 1
}

// pods is how many pods have a container that may be created, each time under another id.
const pods = 4

func podOf(i int) string { return fmt.Sprintf("u%d", i) }

// identity is what containerd writes into the spec of the container c of a pod.
func identity(pod string) string {
	return fmt.Sprintf(`"io.kubernetes.cri.container-type":"container",`+
		`"io.kubernetes.cri.sandbox-uid":%q,"io.kubernetes.cri.sandbox-namespace":"n",`+
		`"io.kubernetes.cri.sandbox-name":"p","io.kubernetes.cri.container-name":"c"`, pod)
}

// holdings are the grants that were asked for, by administrators and by users.
type holdings struct {
	*world
	list    []*holding
	closing bool              // all grants are being released
	tried   map[grant.ID]bool // gpuledgerd has tried to release it because nothing uses it
}

// enter asks for a grant by hand.
func (hs *holdings) enter() {
	h, ask := hs.draft()
	hs.begin("grant", func(p *process, n *node.Node) {
		g, reference, err := grants.Enter(n, ask)
		hs.report(hs.checkUngranted(p, ask, nil, err))
		hs.answered(p, h, ask, g, reference, err)
	})
}

// enterAll asks for several grants at once, as a driver of Kubernetes does.
func (hs *holdings) enterAll() {
	var of []*holding
	var asks []admission.Ask
	for range 2 + hs.random.IntN(3) {
		h, ask := hs.draft()
		of, asks = append(of, h), append(asks, ask)
	}
	hs.begin("grants", func(p *process, n *node.Node) {
		var entered []grant.Grant
		for i, e := range grants.EnterAll(n, asks, nil) {
			hs.report(hs.checkUngranted(p, asks[i], entered, e.Err))
			if e.Err == nil {
				entered = append(entered, e.Grant)
			}
			hs.answered(p, of[i], asks[i], e.Grant, e.Reference, e.Err)
		}
	})
}

// answered is when the holder of a grant reads whether there is one.
func (hs *holdings) answered(p *process, h *holding, ask admission.Ask, g grant.Grant,
	reference grant.Reference, err error) {
	h.busy = false
	if err == nil {
		hs.acknowledged(g, ask.TTL)
		h.acked, h.id, h.reference, h.expires = true, g.ID, reference, g.Expires
		hs.report(checkPlaced(p, g))
	} else if p.faults < 2 && hs.labelled(h.label) != nil {
		hs.fail("%s returned an error, and its grant is there: %v", p.name, err)
	}
}

// draft is a request for a grant by hand, and what its holder knows.
func (hs *holdings) draft() (*holding, admission.Ask) {
	h := &holding{label: fmt.Sprintf("grant-%d", len(hs.list)), busy: true}
	if hs.random.IntN(4) == 0 {
		h.pod = podOf(hs.random.IntN(pods))
	}
	ask := admission.Ask{Owner: h.owner(), Label: h.label, Source: "cli", GPUs: 1 + hs.random.IntN(hs.gpus),
		Mode: []grant.Mode{grant.Limit, grant.Limit, grant.Timeslice, grant.Exclusive, grant.MPS,
			grant.MPS}[hs.random.IntN(6)]}
	if hs.server && hs.random.IntN(4) > 0 {
		ask.Mode = grant.MPS
	}
	if hs.divides && hs.random.IntN(2) == 0 {
		ask.Mode, ask.Profile = grant.MIG, profile
	}
	each := card
	switch {
	case ask.Mode == grant.MIG:
		each = slice
	case ask.Mode != grant.Exclusive:
		each = grant.Bytes(1+hs.random.IntN(8)) * grant.GiB
		ask.Memory = each * grant.Bytes(ask.GPUs)
	}
	h.possible = []grant.Bytes{each * grant.Bytes(ask.GPUs)}
	if (ask.Mode == grant.Limit || ask.Mode == grant.MPS) && hs.random.IntN(3) == 0 {
		ask.Compute = 10 * (3 + hs.random.IntN(8))
	}
	if hs.random.IntN(3) == 0 {
		ask.TTL = time.Duration(1+hs.random.IntN(30)) * time.Hour
	}
	hs.list = append(hs.list, h)
	return h, ask
}

// labelled is the grant of a label, if it is in the ledger.
func (w *world) labelled(label string) (found *grant.Grant) {
	v := w.inside()
	for i := range v.Grants {
		if v.Grants[i].Label == label {
			found = &v.Grants[i]
		}
	}
	return found
}

// of is the holding of an id, or nil.
func (hs *holdings) of(id grant.ID) *holding {
	i := slices.IndexFunc(hs.list, func(h *holding) bool { return h.id == id })
	if i < 0 {
		return nil
	}
	return hs.list[i]
}

// pick is an acknowledged grant that is not being changed, or nil.
func (hs *holdings) pick() *holding {
	var all []*holding
	for _, h := range hs.list {
		if h.acked && !h.busy && !h.over {
			all = append(all, h)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[hs.random.IntN(len(all))]
}

// pickToChange is pick, or, more often than not, a grant with a record for the shim: the update of
// its memory changes two files, and may end between them.
func (hs *holdings) pickToChange() *holding {
	if hs.random.IntN(4) == 0 {
		return hs.pick()
	}
	var all []*holding
	kept := limits.Kept(hs.eyes.Policy.LimitsRoot())
	for _, h := range hs.list {
		if h.acked && !h.busy && !h.over && h.user == 0 && slices.Contains(kept, string(h.id)) {
			all = append(all, h)
		}
	}
	if len(all) == 0 {
		return hs.pick()
	}
	return all[hs.random.IntN(len(all))]
}

func (hs *holdings) release() {
	h := hs.pick()
	if h == nil {
		return
	}
	h.busy, h.over = true, true
	hs.begin("release", func(p *process, n *node.Node) {
		_, err := grants.Release(n, h.id, false)
		h.answered(p, err)
	})
}

func (hs *holdings) change() {
	h := hs.pickToChange()
	if h == nil || h.user != 0 { // root may give a user more than the quota
		return
	}
	most := []int{4, 4, 16}[hs.random.IntN(3)] // what is small fits mostly

	// over 1, 2 or 3 GPUs
	memory, before := grant.Bytes(1+hs.random.IntN(most))*1536*grant.MiB, h.possible
	h.busy, h.possible = true, append(slices.Clone(before), memory)
	hs.begin("update", func(p *process, n *node.Node) {
		p.update = true
		_, err := grants.Update(n, h.id, grants.Change{Memory: &memory})
		if h.busy = false; err == nil {
			h.possible = []grant.Bytes{memory}
		} else if p.faults == 0 {
			h.possible = before
		}
	})
}

// powerCut is when the holders find out what the node has kept.
func (hs *holdings) powerCut() {
	for _, h := range hs.list {
		releasing := h.busy && h.over // its holder was, and it may be done or not
		h.busy = false
		_, err := os.Stat(hs.path("state/grants/" + string(h.id) + ".json"))
		if hs.tried[h.id] && err == nil {
			h.over = h.released || releasing // what is there now is durable
			delete(hs.tried, h.id)
		}
	}
}

// keep is longer than an expired grant is kept.
const keep = 24 * time.Hour

// checkHeld: no acknowledged grant is lost or changed, and none comes back.
func (hs *holdings) checkHeld(v grant.View) {
	for _, h := range hs.list {
		if !h.acked || !h.expires.IsZero() && !hs.latest.Before(h.expires.Add(keep)) {
			continue
		}
		i := slices.IndexFunc(v.Grants, func(g grant.Grant) bool { return g.ID == h.id })
		idle := limitsOf[h.user].idle
		switch {
		case i < 0 && hs.tried[h.id] && idle > 0 && hs.awake-hs.used[h.id] >= idle:
			// a pass that is at work may put it back, and after its end by force a power cut may
			h.over = h.over || hs.daemon == nil || !hs.daemon.passing
		case i < 0 && !h.over:
			hs.fail("grant %s (%s) was acknowledged, and is lost", h.id, h.label)
		case i >= 0 && v.Grants[i].Draining && !h.over:
			hs.fail("grant %s (%s) is draining, and was never released", h.id, h.label)
		case i >= 0 && h.released && v.Grants[i].Live(hs.now) && len(v.Grants[i].Bindings) == 0:
			hs.fail("grant %s (%s) was released, and is back", h.id, h.label)
		case i >= 0 && !slices.Contains(h.possible, v.Grants[i].Memory()):
			hs.fail("grant %s has %s, acknowledged are %v", h.id, v.Grants[i].Memory(), h.possible)
		}
	}
}
