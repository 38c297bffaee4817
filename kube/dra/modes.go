package dra

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// standard lists the modes in which a GPU is offered to the cluster if no pool lists its modes.
// Several shared modes need counters, so an administrator has to ask for them. What is granted on
// the node itself can be in any mode.
var standard = []grant.Mode{grant.Exclusive, grant.Limit, grant.MIG}

// devicePlan says how a GPU or MIG device is published. The configuration decides it, whatever is
// granted of the GPU at present.
type devicePlan struct {
	modes   []grant.Mode // that the cluster is offered
	joint   grant.Mode   // the shared mode of the one device for shares and for the whole GPU; "": none
	counter bool         // there is a device for each mode, and a counter keeps them apart
}

// plansOf returns a plan for each GPU and MIG device, in the order of the seats.
func plansOf(p nodeledger.Content) ([]devicePlan, error) {
	empty, err := admission.Seats(grant.View{}, p.Inventory, p.Node.Policy)
	if err != nil {
		return nil, err
	}
	plans := make([]devicePlan, len(empty))
	for i, s := range empty {
		plans[i] = planOf(s, p.Node.Policy.Pools, p.Chosen)
	}
	return plans, nil
}

func planOf(s admission.Seat, pools []grant.Pool, chosen grant.Mode) devicePlan {
	var to devicePlan
	if partitioned(s) {
		return to
	}
	listed := slices.ContainsFunc(pools, func(p grant.Pool) bool { return len(p.Modes) > 0 && p.Has(s.GPU) })
	var shares []grant.Mode
	for _, mode := range s.Modes {
		if chosen == "" && !listed && !slices.Contains(standard, mode) || !choosable(mode, chosen) {
			continue
		}
		to.modes = append(to.modes, mode)
		if slices.Contains(shared, mode) {
			shares = append(shares, mode)
		}
	}
	switch {
	case s.MIG != nil || len(to.modes) < 2:
	case len(shares) == 1:
		to.joint = shares[0]
	default:
		to.counter = true
	}
	return to
}

// choosable reports whether a mode is offered where a label of the node has chosen one. The label
// chooses among the modes of shares, or none of them. The pools of the node's configuration still
// say what is allowed.
func choosable(mode, chosen grant.Mode) bool {
	return chosen == "" || mode == chosen || !slices.Contains(shared, mode)
}

// partitioned reports whether only the MIG devices of a GPU are published.
func partitioned(s admission.Seat) bool { return s.MIG == nil && len(s.GPU.MIG) > 0 }

// offered returns the modes in which a GPU is offered to the cluster beside what is granted of it.
func (to devicePlan) offered(s admission.Seat) []grant.Mode {
	return slices.DeleteFunc(slices.Clone(to.modes),
		func(m grant.Mode) bool { return !slices.Contains(s.Modes, m) })
}

// Allocations returns what a claim has of each device, by the device's name: the memory that it
// consumes. known is false if the API has not said it yet.
type Allocations func(claim types.UID) (consumed map[string]grant.Bytes, known bool)

// counted reports whether the scheduler counts what a claim's grant has of a GPU: the claim's
// device is published, or would be if any of it were free. A share's device has the name of its
// mode. A whole GPU's device may be the one for all claims, or one that an older driver or
// configuration has published. Its claim says so. A claim that is not known yet counts only where
// just one device is possible. Of the device for all claims it must have all the memory.
func counted(g grant.Grant, to devicePlan, s admission.Seat, claims Allocations) bool {
	modes := to.offered(s)
	if !slices.Contains(modes, g.Mode) {
		return false
	}
	if g.Mode != grant.Exclusive {
		return true
	}
	claim, _ := claimOf(g)
	consumed, known := claims(claim)
	if to.joint != "" {
		all := s.Free - s.Free%grant.MiB
		has, is := consumed[deviceName(s.UUID(), to.joint)]
		return is && has >= all
	}
	return !known || slices.ContainsFunc(modes, func(m grant.Mode) bool {
		_, is := consumed[deviceName(s.UUID(), m)]
		return is
	})
}
