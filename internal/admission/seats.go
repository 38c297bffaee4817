package admission

import (
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Seat is a GPU or a MIG device as it is shown to somebody who places by himself, as a cluster's
// scheduler does.
type Seat struct {
	grant.Device
	Closed  string       // why it takes no grant, as "is unhealthy: ..."; "" where it does
	Mode    grant.Mode   // of the grants that it serves; "" where it serves none
	Modes   []grant.Mode // those that a grant could be in: one where it serves any
	Outside grant.Bytes  // used by nobody's grant
	Space   grant.Bytes  // what could be granted if nobody had any
	Free    grant.Bytes  // what can be granted
	Compute int          // percent that can be granted
	// in mode mps: how many GPUs the daemon is over that serves it, and with it any grant here
	Served int
}

// Seats tells of every GPU and every MIG device what a view leaves of it. Whoever counts some
// grants himself leaves them out of the view.
func Seats(v grant.View, inv grant.Inventory, p grant.Policy) ([]Seat, error) {
	all, err := survey("", v, inv, p)
	if err != nil {
		return nil, err
	}
	seats := make([]Seat, len(all))
	for i, s := range all {
		seats[i] = Seat{Device: s.device, Closed: s.closed, Mode: s.mode, Modes: s.modes(),
			Outside: s.outside, Space: s.space, Free: s.free, Compute: max(s.compute, 0),
			Served: len(s.together)}
	}
	return seats, nil
}

// modes are those that a grant of some size could be in here.
func (s seat) modes() []grant.Mode {
	var modes []grant.Mode
	s.closed = "" // a closed GPU opens again
	for _, m := range grant.Modes {
		ask := Ask{Mode: m, Names: []string{s.device.UUID()}}
		_, conflict := ask.misfit(s)
		if taken := s.mode != "" && ask.wholly(); !conflict && !taken {
			modes = append(modes, m)
		}
	}
	return slices.Clip(modes)
}
