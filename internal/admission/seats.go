package admission

import (
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Seat is a GPU or a MIG device, for a caller that places grants itself, as a cluster's scheduler
// does.
type Seat struct {
	grant.Device
	Closed  string       // why it takes no grant, as "is unhealthy: ..."; "" if it does
	Mode    grant.Mode   // of the grants that it serves; "" if it serves none
	Modes   []grant.Mode // those in which a grant can be made: one if it serves any
	Outside grant.Bytes  // in use outside every grant
	Held    bool         // a container has it open that has no grant of it
	Space   grant.Bytes  // what could be granted if there were no grants
	Free    grant.Bytes  // what can be granted
	Compute int          // percent that can be granted
	Served  int          // in mode mps: the number of GPUs of its daemon, and so of every grant here
}

// Used reports whether it is used outside every grant, so that no grant can have all of it.
func (s Seat) Used() bool { return s.Outside > 0 || s.Held }

// Seats returns every GPU and every MIG device, with what the grants of a view leave of it. A
// caller that counts some grants itself leaves them out of the view.
func Seats(v grant.View, inv grant.Inventory, p grant.Policy) ([]Seat, error) {
	all, err := allSeats("", v, inv, p)
	if err != nil {
		return nil, err
	}
	seats := make([]Seat, len(all))
	for i, s := range all {
		seats[i] = Seat{Device: s.device, Closed: s.closed, Mode: s.mode, Modes: modesOf(s),
			Outside: s.outside, Held: s.held, Space: s.space, Free: s.free, Compute: max(s.compute, 0),
			Served: len(s.daemonGPUs)}
	}
	return seats, nil
}

// Free returns, by the UUID of each GPU and MIG device, how much memory can still be granted. Those
// that take no grants are left out.
func Free(v grant.View, inv grant.Inventory, p grant.Policy) (map[string]grant.Bytes, error) {
	seats, err := allSeats("", v, inv, p)
	if err != nil {
		return nil, err
	}
	free := map[string]grant.Bytes{}
	for _, s := range seats {
		if s.closed == "" {
			free[s.device.UUID()] = s.free
		}
	}
	return free, nil
}

// modesOf lists the modes in which a grant of some size can be made on a seat. A reason for which
// it takes no grants now does not count.
func modesOf(s seat) []grant.Mode {
	var modes []grant.Mode
	s.closed = ""
	for _, m := range grant.Modes {
		ask := Ask{Mode: m, Names: []string{s.device.UUID()}}
		_, onlyMode := ask.misfit(s)
		if taken := s.mode != "" && ask.isWhole(); !onlyMode && !taken {
			modes = append(modes, m)
		}
	}
	return slices.Clip(modes)
}

// seat is a GPU or a MIG device with what is granted of it.
type seat struct {
	device     grant.Device
	pool       *grant.Pool // nil if there are no pools
	closed     string      // why it takes no grant at all
	mode       grant.Mode  // "" if it serves no grant
	holders    []string    // "g-... (limit, 4GiB)"
	migHolders []string    // of a partitioned GPU: the holders of its MIG devices
	groups     []string    // groups that its grants are a part of, once for each grant
	outside    grant.Bytes // in use outside every grant
	held       bool        // a container has it that has no grant for it
	space      grant.Bytes // what could be granted if there were no grants
	free       grant.Bytes
	asked      grant.Bytes // what containers have that asked for it at their create
	compute    int         // percent that is not granted
	askedPart  int         // percent of compute that containers have that asked for it
	siblings   int         // of a MIG device: how many others of its GPU are granted
	daemonGPUs []string    // in mode mps: the UUIDs of the GPUs of the daemon that serves it
}

// allSeats adds up the grants of a view for each GPU and MIG device. It leaves out the grant
// updated, and what its own containers use beyond it.
func allSeats(updated grant.ID, v grant.View, inv grant.Inventory, p grant.Policy) ([]seat, error) {
	devices := inv.Devices()
	seats := make([]seat, len(devices))
	lost := lostMIG(v, inv)
	for i, d := range devices {
		pool, err := poolOf(d.GPU, p.Pools)
		if err != nil {
			return nil, err
		}
		s := seat{device: d, pool: pool, compute: 100, closed: whyClosed(d, v), held: v.Held[d.GPU.UUID]}
		for _, uuid := range d.SharingMemory() {
			s.outside += subtract(v.Outside[uuid], v.ExcessOf(updated, uuid))
			s.held = s.held || v.Held[uuid]
		}
		if id, is := lost[d.GPU.Index]; is && s.closed == "" {
			s.closed = "is closed: a container of grant " + string(id) +
				" has a MIG device of it that is gone, and can open what took its place"
		}
		if len(p.Pools) > 0 && pool == nil && s.closed == "" {
			s.closed = "is in no pool"
		}
		if s.space = d.Memory(); d.MIG == nil { // a MIG device is granted as a whole
			s.space = subtract(s.space, grant.Bytes(p.Rules.Reserve), s.outside)
		}
		if s.free = s.space; d.MIG != nil && (s.outside > 0 || s.held) {
			s.free = 0
		}
		for _, g := range v.Grants {
			if g.ID != updated && g.Live(v.Now) {
				s = withGrant(s, g)
			}
		}
		seats[i] = s
	}
	related := make([]seat, len(seats))
	for i, s := range seats {
		related[i] = withRelated(s, seats)
	}
	return related, nil
}

// lostMIG returns the GPUs, by index, of which a container has a MIG device that is gone. It keeps
// the device node of the GPU, which opens all of it once it is not partitioned, and the numbers of
// the device's nodes, which another MIG device may have now.
func lostMIG(v grant.View, inv grant.Inventory) map[int]grant.ID {
	lost := map[int]grant.ID{}
	for _, g := range v.Grants {
		if g.Mode != grant.MIG || len(g.Bindings) == 0 {
			continue
		}
		for _, share := range g.GPUs {
			if _, known := inv.Device(share.UUID); !known {
				lost[share.Index] = g.ID
			}
		}
	}
	return lost
}

// leftOf returns what containers may still ask for, if all of them may have a percentage of the
// seat.
func (s seat) leftOf(percent int) grant.Bytes {
	return subtract(s.space*grant.Bytes(percent)/100, s.asked)
}

// whyClosed says why a GPU or MIG device takes no grants, whatever is free on it; "" if it takes
// grants.
func whyClosed(device grant.Device, v grant.View) string {
	for _, d := range v.Damaged {
		if len(d.GPUs) == 0 ||
			slices.Contains(d.GPUs, device.GPU.UUID) || slices.Contains(d.GPUs, device.UUID()) {
			return "is closed: the ledger's entry " + string(d.ID) +
				" is damaged or missing (`gpuledger check` says how)"
		}
	}
	switch {
	case device.GPU.Health != grant.Healthy:
		return "is unhealthy: " + device.GPU.Health
	case device.MIG == nil && len(device.GPU.MIG) > 0:
		return "is partitioned (mode mig)"
	}
	return device.Trouble()
}

// subtract subtracts, but not below zero.
func subtract(b grant.Bytes, parts ...grant.Bytes) grant.Bytes {
	for _, part := range parts {
		b -= min(b, part)
	}
	return b
}

// withGrant returns a seat after a grant has taken its share.
func withGrant(s seat, g grant.Grant) seat {
	for _, share := range g.GPUs {
		if share.UUID != s.device.UUID() {
			continue
		}
		s.mode = g.Mode
		if g.Mode == grant.MPS {
			s.daemonGPUs = g.UUIDs()
		}
		s.free = subtract(s.free, share.Memory)
		if g.ByContainer() {
			s.asked += share.Memory
			s.askedPart += g.Compute
		}
		s.compute -= g.Compute
		s.holders = append(s.holders, fmt.Sprintf("%s (%s, %s)", g.ID, g.Mode, share.Memory))
		s.groups = append(s.groups, g.Groups()...)
	}
	return s
}

// withRelated returns a seat with what the other seats of its GPU mean for it: for a GPU those of
// its MIG devices, for a MIG device the others and the GPU. A GPU that was granted as a whole
// before it was partitioned takes no other mode.
func withRelated(s seat, seats []seat) seat {
	if s.device.MIG == nil {
		for _, part := range seats {
			if part.device.GPU.UUID == s.device.GPU.UUID && part.mode == grant.MIG {
				s.migHolders = append(s.migHolders, part.holders...)
			}
		}
		return s
	}
	for _, other := range seats {
		switch {
		case other.device.GPU.UUID != s.device.GPU.UUID || other.mode == "":
		case other.device.MIG == nil:
			s.mode, s.holders, s.free = other.mode, other.holders, 0
		default:
			s.siblings++
			s.groups = append(s.groups, other.groups...)
		}
	}
	return s
}

// poolOf returns the pool of a GPU; nil: none.
func poolOf(gpu grant.GPU, pools []grant.Pool) (*grant.Pool, error) {
	var pool *grant.Pool
	for i := range pools {
		if !pools[i].Has(gpu) {
			continue
		}
		if pool != nil {
			return nil, &grant.Refusal{Code: grant.ConfigInvalid,
				Message: fmt.Sprintf("GPU %d is in two pools", gpu.Index),
				Hint:    "correct [[pool]] in the configuration"}
		}
		pool = &pools[i]
	}
	return pool, nil
}
