package dra

import (
	"encoding/json"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// Every publishing is a write to the API and a wake-up of the scheduler, for each node. What a program outside the ledger allocates
// changes a capacity every second; a taint, or a device that comes or goes, is news.
const (
	calm   = 10 * time.Second // between two publishings that tell of amounts only
	settle = time.Minute      // until a small rise is told, or what did not arrive is told again
	slight = 64               // a rise is small that is less than this part of the amount
	urgent = 6                // so many pieces of news a minute are told at once; more of them come as amounts do
)

// notice is what the cluster is told, in two parts that differ in how soon it has to hear of a change.
type notice struct {
	shape   string           // devices, taints, attributes, but for the amounts
	amounts map[string]int64 // by device and capacity
}

// noticeOf takes slices apart.
func noticeOf(list []resourceslice.Slice) (notice, error) {
	n := notice{amounts: map[string]int64{}}
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
					d.Taints[t].Value = "" // how much it is
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

// pace decides when a change is told. It is a value that the publisher alone has.
type pace struct {
	told   *notice     // nil: nothing yet
	at     time.Time   // of the last publishing
	recent []time.Time // of the news among them, in the last minute
}

// due reports whether the cluster is to be told now; failed is whether it may not have taken what it was told last. What has come back meanwhile is
// never told.
func (p *pace) due(n notice, now time.Time, failed bool) bool {
	since := now.Sub(p.at)
	if since < 0 { // somebody has set the clock back
		since = settle
	}
	switch {
	case p.told == nil, failed && since >= settle:
		return true
	case p.told.shape != n.shape:
		return since >= calm || len(p.fresh(now)) < urgent
	}
	fallen, risen, much := p.told.compare(n)
	return since >= calm && (fallen || risen && (much || since >= settle))
}

// published notes that it was.
func (p *pace) published(n notice, now time.Time) {
	if p.told == nil || p.told.shape != n.shape {
		p.recent = append(p.fresh(now), now)
	}
	p.told, p.at = &n, now
}

func (p *pace) fresh(now time.Time) []time.Time {
	for len(p.recent) > 0 && now.Sub(p.recent[0]) >= time.Minute {
		p.recent = p.recent[1:]
	}
	return p.recent
}

// compare reports whether any amount is less than it was, or more, and whether one is much more.
func (n notice) compare(with notice) (fallen, risen, much bool) {
	for name, amount := range with.amounts {
		before, found := n.amounts[name]
		fallen = fallen || amount < before || !found
		risen = risen || amount > before
		much = much || amount-before > amount/slight
	}
	return fallen || len(n.amounts) != len(with.amounts), risen, much
}
