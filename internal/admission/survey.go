package admission

import (
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// seat is a GPU or a MIG device as a placement sees it.
type seat struct {
	device  grant.Device
	pool    *grant.Pool // nil where there are no pools
	closed  string      // why it takes no grant at all
	mode    grant.Mode  // "" when free
	holders []string    // "g-... (limit, 4GiB)"
	parts   []string    // likewise, of a partitioned GPU's MIG devices
	groups  []string    // owner groups that it serves
	outside grant.Bytes // used by nobody's grant
	held    bool        // a container has it that has no grant of it
	space   grant.Bytes // what could be granted if nobody had any
	free    grant.Bytes
	compute int // percent not granted yet
	beside  int // of a MIG device: how many others of its GPU are granted

	together []string // in mode mps: the GPUs of the daemon that serves it, by UUID
}

// survey adds the ledger up, GPU by GPU and MIG device by MIG device.
func survey(updated grant.ID, v grant.View, inv grant.Inventory, p grant.Policy) ([]seat, error) {
	devices := inv.Devices()
	seats := make([]seat, len(devices))
	for i, d := range devices {
		pool, err := poolOf(d.GPU, p.Pools)
		if err != nil {
			return nil, err
		}
		s := seat{device: d, pool: pool, outside: v.Outside[d.UUID()], held: v.Held[d.GPU.UUID], compute: 100,
			closed: closedBy(d, v)}
		if len(p.Pools) > 0 && pool == nil && s.closed == "" {
			s.closed = "is in no pool"
		}
		if s.space = d.Memory(); d.MIG == nil { // a MIG device is granted whole
			s.space = less(s.space, grant.Bytes(p.Rules.Reserve), s.outside)
		}
		s.free = s.space
		for _, g := range v.Grants {
			if g.ID != updated && g.Live(v.Now) {
				s.seatGrant(g)
			}
		}
		seats[i] = s
	}
	alone := slices.Clone(seats)
	for i := range seats {
		seats[i].join(alone)
	}
	return seats, nil
}

// closedBy says why a GPU or MIG device takes no grants, whatever is free on it.
func closedBy(device grant.Device, v grant.View) string {
	for _, d := range v.Damaged {
		if len(d.GPUs) == 0 || slices.Contains(d.GPUs, device.GPU.UUID) ||
			slices.Contains(d.GPUs, device.UUID()) {
			return fmt.Sprintf("is closed: the ledger's entry %s is damaged (`gpuledger check` says how)",
				d.ID)
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

// less subtracts without going below zero.
func less(b grant.Bytes, parts ...grant.Bytes) grant.Bytes {
	for _, part := range parts {
		b -= min(b, part)
	}
	return b
}

func (s *seat) seatGrant(g grant.Grant) {
	for _, share := range g.GPUs {
		if share.UUID != s.device.UUID() {
			continue
		}
		s.mode = g.Mode
		if g.Mode == grant.MPS {
			s.together = g.UUIDs()
		}
		s.free = less(s.free, share.Memory)
		s.compute -= g.Compute
		s.holders = append(s.holders, fmt.Sprintf("%s (%s, %s)", g.ID, g.Mode, share.Memory))
		if group := g.Owner.Group(); group != "" {
			s.groups = append(s.groups, group)
		}
	}
}

// poolOf tells which pool a GPU is in; nil is none.
func poolOf(gpu grant.GPU, pools []grant.Pool) (*grant.Pool, error) {
	var in *grant.Pool
	for i := range pools {
		if !pools[i].Has(gpu) {
			continue
		}
		if in != nil {
			return nil, &grant.Refusal{Code: grant.ConfigInvalid,
				Message: fmt.Sprintf("GPU %d is in two pools", gpu.Index),
				Hint:    "correct [[pool]] in the configuration"}
		}
		in = &pools[i]
	}
	return in, nil
}

// Free tells for each GPU and MIG device, by UUID, how much memory a placement could still grant; 0
// where it takes no grants.
func Free(v grant.View, inv grant.Inventory, p grant.Policy) (map[string]grant.Bytes, error) {
	seats, err := survey("", v, inv, p)
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
