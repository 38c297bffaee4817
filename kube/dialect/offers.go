package dialect

import (
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Offer is a resource that a node has to offer, so that the kubelet admits the pods that the
// scheduler has placed there. The amounts are no limit: the scheduler and the node's ledger count.
type Offer struct {
	Name string
	// The memory that one stands for. 0: it counts something else.
	Unit grant.Bytes
	// How many there are of each GPU, if Unit is 0.
	EachGPU int
	// It has to be enough for pods that share a GPU and count it once each.
	Cards bool
}

// Offers returns the resources that nodes offer, in the order of the configuration.
func (c Config) Offers() (all []Offer) {
	for _, r := range c.Resources {
		m := r.meaning()
		o := Offer{Name: r.Name, Unit: m.unit}
		switch {
		case !strings.Contains(r.Name, "/"), c.replicated(r.Name):
			continue
		case m.kind == percentEach, m.kind == compute:
			o.EachGPU = 100
		case m.kind == gpus:
			o.EachGPU, o.Cards = 1, m.family == nvidia && c.has(hami)
		}
		all = append(all, o)
	}
	for _, s := range c.sharing {
		all = append(all, Offer{Name: s.offered(), EachGPU: s.most()})
	}
	return all
}

// most returns how many shares can fit on a GPU: a few more than the replicas, because a share is
// rounded down to thousandths of the GPU and to MiB. The kubelet refuses a pod that it has no share
// for, and the pod's controller makes the next one, without end. The first bound is for GPUs of at
// least 1 GiB. The second one is for all: rounding down to MiB takes less than half of a share.
func (s shared) most() int {
	return min(1000*1024/(1024*s.part()-999), 2*1000/s.part())
}

// Annotations returns the keys of annotations of pods that ask for GPUs.
func (c Config) Annotations() (keys []string) {
	for _, r := range c.Resources {
		if !strings.Contains(r.Name, "/") {
			keys = append(keys, r.Name)
		}
	}
	return keys
}
