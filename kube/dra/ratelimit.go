package dra

import (
	"encoding/json"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// Each publishing by a node is a write to the API and wakes the scheduler. A program outside the
// ledger can change a capacity every second, so changes of amounts wait. A taint, or a device that
// appears or disappears, is published at once.
const (
	amountWait = 10 * time.Second // between two publishings that change only amounts
	riseWait   = time.Minute      // until a small rise, or a failed publishing, is published again
	smallPart  = 64               // a rise is small if it is less than 1/64 of the amount
	// changes of the shape published at once per minute; more of them wait for amountWait
	maxShapeChanges = 6
)

// summary is the content of slices, in two parts that differ in how soon a change must be
// published.
type summary struct {
	shape   string           // devices, taints and attributes, without the amounts
	amounts map[string]int64 // by device and capacity, in bytes or percent
}

// summarize splits slices into shape and amounts.
func summarize(list []resourceslice.Slice) (summary, error) {
	n := summary{amounts: map[string]int64{}}
	var bare []resourceslice.Slice
	for _, s := range list {
		without := resourceslice.Slice{SharedCounters: s.SharedCounters}
		for i := range s.Devices {
			d := s.Devices[i].DeepCopy()
			for name, c := range d.Capacity {
				n.amounts[d.Name+" "+string(name)] = c.Value.Value()
			}
			d.Capacity = nil
			for t := range d.Taints {
				if d.Taints[t].Key == taintOutside {
					d.Taints[t].Value = "" // the amount is no part of the shape
				}
			}
			without.Devices = append(without.Devices, *d)
		}
		bare = append(bare, without)
	}
	shape, err := json.Marshal(bare)
	n.shape = string(shape)
	return n, err
}

// rateLimit decides when a change of the slices is published. Only the publisher uses it, so it has
// no lock.
type rateLimit struct {
	last   *summary    // the last publishing; nil: none yet
	at     time.Time   // time of the last publishing
	recent []time.Time // times of changes of the shape in the last minute
}

// due reports whether to publish now. failed says that the API may not have taken the last
// publishing. A change that is undone meanwhile is never published.
func (p *rateLimit) due(n summary, now time.Time, failed bool) bool {
	since := now.Sub(p.at)
	if since < 0 { // the clock was set back
		since = riseWait
	}
	switch {
	case p.last == nil, failed && since >= riseWait:
		return true
	case p.last.shape != n.shape:
		return since >= amountWait || len(p.fresh(now)) < maxShapeChanges
	}
	fallen, risen, much := p.last.compare(n)
	return since >= amountWait && (fallen || risen && (much || since >= riseWait))
}

// published records a publishing.
func (p *rateLimit) published(n summary, now time.Time) {
	if p.last == nil || p.last.shape != n.shape {
		p.recent = append(p.fresh(now), now)
	}
	p.last, p.at = &n, now
}

func (p *rateLimit) fresh(now time.Time) []time.Time {
	for len(p.recent) > 0 && now.Sub(p.recent[0]) >= time.Minute {
		p.recent = p.recent[1:]
	}
	return p.recent
}

// compare reports whether any amount of the next summary is less, or greater, and whether one is
// much greater.
func (n summary) compare(next summary) (fallen, risen, much bool) {
	for name, amount := range next.amounts {
		before, found := n.amounts[name]
		fallen = fallen || amount < before || !found
		risen = risen || amount > before
		much = much || amount-before > amount/smallPart
	}
	return fallen || len(n.amounts) != len(next.amounts), risen, much
}
