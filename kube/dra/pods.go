package dra

import (
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// tiesOf returns the ties of a claim's grants: its namespace, and the pods that the claim is
// reserved for. A claim can also be reserved for others, such as a group of pods, whose members are
// not known here. Then the namespace is the only tie.
func tiesOf(claim *resourceapi.ResourceClaim) []grant.Tie {
	to := []grant.Tie{grant.NamespaceTie(claim.Namespace)}
	for _, r := range claim.Status.ReservedFor {
		if r.APIGroup != "" || r.Resource != "pods" {
			return to[:1]
		}
		to = append(to, grant.PodTie(string(r.UID)))
	}
	slices.Sort(to[1:])
	return slices.Compact(to)
}

// pods holds what the API last said about the claims with grants: the pods that they are reserved
// for. The kubelet does not prepare a claim again when another pod is added to it. So the driver
// watches each claim.
type pods struct {
	mu      sync.Mutex
	claims  map[types.UID]reserved
	changed chan struct{} // has an element when a claim may have changed
	unable  sync.Once     // logs once that grants cannot be tied here
}

// reserved is what a claim was reserved for.
type reserved struct {
	version uint64 // the claim's resource version
	pods    []grant.Tie
	empty   bool
	// memory that the claim has of this driver's devices, by their names
	consumed map[string]grant.Bytes
	// no grant was found for the claim since
	without bool
	shown   bool // a watch shows the claim, and would show its end
}

// consumedBy returns what a claim has of each device.
func consumedBy(claim *resourceapi.ResourceClaim) map[string]grant.Bytes {
	consumed := map[string]grant.Bytes{}
	if claim.Status.Allocation == nil {
		return consumed
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == DriverName {
			amount := r.ConsumedCapacity[memory]
			consumed[r.Device] += grant.Bytes(amount.Value())
		}
	}
	return consumed
}

// learn records a claim unless a newer version is known. It returns the newest.
func (p *pods) learn(claim *resourceapi.ResourceClaim) reserved {
	p.mu.Lock()
	defer p.mu.Unlock()
	version := versionOf(claim)
	now := reserved{version: version, pods: tiesOf(claim), empty: len(claim.Status.ReservedFor) == 0,
		consumed: consumedBy(claim)}
	before := p.claims[claim.UID]
	if before.version > version {
		return before
	}
	now.shown = before.shown
	if p.claims == nil {
		p.claims = map[types.UID]reserved{}
	}
	p.claims[claim.UID] = now
	return now
}

// versionOf returns a claim's resource version. Those of one resource are ordered (KEP 5504).
func versionOf(claim *resourceapi.ResourceClaim) uint64 {
	version, _ := strconv.ParseUint(claim.ResourceVersion, 10, 64)
	return version
}

// show notes whether a watch shows a claim that is known.
func (p *pods) show(claim types.UID, is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r, known := p.claims[claim]; known {
		r.shown = is
		p.claims[claim] = r
	}
}

// restart makes the next version of a claim count as newer than this one.
func (p *pods) restart(claim types.UID, version uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r, known := p.claims[claim]; known && r.version == version {
		r.version = 0
		p.claims[claim] = r
	}
}

func (p *pods) known(claim types.UID) (reserved, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, known := p.claims[claim]
	return r, known
}

// consumed returns what a claim has of each device; see Allocations.
func (p *pods) consumed(claim types.UID) (map[string]grant.Bytes, bool) {
	r, known := p.known(claim)
	return r.consumed, known
}

// keep removes the claims that were twice not among these. A claim that is being prepared is known
// before its grant is in the ledger, and may be missing once.
func (p *pods) keep(held map[types.UID][]grant.Grant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, r := range p.claims {
		_, is := held[uid]
		if !is && r.without {
			delete(p.claims, uid)
			continue
		}
		r.without = !is
		p.claims[uid] = r
	}
}

func (p *pods) signals() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{}, 1)
	}
	return p.changed
}

// signal makes Follow look again now.
func (p *pods) signal() {
	select {
	case p.signals() <- struct{}{}:
	default:
	}
}

// canTie reports whether grants can be tied here, and logs once if not.
func (p *pods) canTie(o nodeledger.Content, log *slog.Logger) bool {
	if o.CanTie() {
		return true
	}
	p.unable.Do(func() {
		log.Warn(
			"the engine of this node does not prove which pod a container belongs to, so grants are not "+
				"tied to the pods of their claims: a container that has read a reference can use its grant",
			"engine", o.Node.Policy.Engine)
	})
	return false
}

// mayUse returns the ties of a claim that is prepared.
func (d *Driver) mayUse(claim *resourceapi.ResourceClaim, p nodeledger.Content) ([]grant.Tie, error) {
	r := d.pods.learn(claim)
	switch {
	case !d.pods.canTie(p, d.Log):
		return nil, nil
	case r.empty:
		return nil, errors.New("the claim is reserved for no pod")
	}
	return r.pods, nil
}

// tie sets the ties of an existing grant to the pods of a claim that is prepared again.
func (d *Driver) tie(g grant.Grant, to []grant.Tie) error {
	// Nothing can be tied here now; existing ties stay.
	if to == nil {
		return nil
	}
	return d.Ledger.Tie(g, to, d.Log)
}
