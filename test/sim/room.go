package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// hasRoom reports whether an ask fits. It adds up by itself: that what fits is granted must not be
// asked of the code that decides it.
func hasRoom(ask admission.Ask, v grant.View, inv grant.Inventory) bool {
	second := func(g grant.Grant) bool {
		return ask.Owner != grant.Bearer && g.Owner == ask.Owner && g.Live(v.Now)
	}
	if slices.ContainsFunc(v.Grants, second) || !inQuota(ask, v) {
		return false
	}
	fitting := map[string]int{} // how many devices, by the GPUs of their MPS daemon
	for _, d := range inv.Devices() {
		daemon, fits := fitsOn(d, ask, v, inv)
		if ask.GPUs == 1 {
			daemon = ""
		}
		if fits {
			fitting[daemon]++
		}
		if fitting[daemon] >= ask.GPUs {
			return true
		}
	}
	return false
}

// fitsOn reports whether a GPU or a MIG device has room for its part of an ask, and the GPUs of the
// MPS daemon that serves it; "" for none.
func fitsOn(d grant.Device, ask admission.Ask, v grant.View, inv grant.Inventory) (daemon string, fits bool) {
	uuid, used, compute := d.UUID(), v.Outside[d.UUID()], ask.Compute
	held := v.Held[uuid] || v.Held[d.GPU.UUID] // who has the GPU has its MIG devices
	if d.GPU.Health != grant.Healthy || (d.MIG != nil) != (ask.Mode == grant.MIG) ||
		d.MIG == nil && len(d.GPU.MIG) > 0 || ask.Mode.IsWhole() && (used > 0 || held) {
		return "", false
	}
	for _, g := range v.Grants {
		for _, s := range g.GPUs {
			_, known := inv.Device(s.UUID)
			switch {
			// a container has a MIG device that is gone, and can open what took its place
			case g.Mode == grant.MIG && len(g.Bindings) > 0 && !known && s.Index == d.GPU.Index:
				return "", false
			case !g.Live(v.Now):
			case d.MIG != nil && s.UUID == d.GPU.UUID: // granted before it was divided
				return "", false
			case s.UUID != uuid:
			case g.Mode != ask.Mode || g.Mode.IsWhole() || g.Mode == grant.MPS && len(g.GPUs) != ask.GPUs:
				return "", false
			default:
				used, compute = used+s.Memory, compute+g.Compute
				if g.Mode == grant.MPS {
					daemon = strings.Join(g.UUIDs(), ",")
				}
			}
		}
	}
	return daemon, used+ask.Memory/grant.Bytes(ask.GPUs) <= d.Memory() && compute <= 100
}

// inQuota reports whether the quota of the user who asks, if one does, has room.
func inQuota(ask admission.Ask, v grant.View) bool {
	most, is := limitsOf[ask.User]
	if !is {
		return true
	}
	memory, gpus, count := ask.Memory, ask.GPUs, 1
	if ask.Mode == grant.Exclusive {
		memory = card * grant.Bytes(ask.GPUs)
	}
	for _, g := range v.Grants {
		if g.User == ask.User && g.Live(v.Now) {
			memory, gpus, count = memory+g.Memory(), gpus+len(g.GPUs), count+1
		}
	}
	lasts := cmp.Or(ask.TTL, most.ttl)
	return slices.Contains(most.modes, ask.Mode) && (most.ttl == 0 || lasts <= most.ttl) &&
		(most.memory == 0 || memory <= most.memory) && (most.gpus == 0 || gpus <= most.gpus) &&
		(most.grants == 0 || count <= most.grants)
}

// checkUngranted: an ask that fits is granted, where no disk fails. It is judged by the ledger as
// it was when the process had the lock, with what the same process has entered since, and as it is
// now: a container can begin meanwhile that counts as the one of a binding. It is not judged where
// the clock was set or the inventory has changed meanwhile.
func (w *world) checkUngranted(p *process, ask admission.Ask, entered []grant.Grant, err error) string {
	if err == nil || p.faults > 0 || p.ledger == nil || len(p.inventories) != 1 {
		return ""
	}
	v := *p.ledger
	v.Grants = slices.Concat(v.Grants, entered)
	if !hasRoom(ask, v, p.inventories[0]) || !hasRoom(ask, w.inside(), p.inventories[0]) {
		return ""
	}
	return fmt.Sprintf("%s is refused %s on %d GPUs in mode %s, and there is room: %v", p.name, ask.Memory,
		ask.GPUs, ask.Mode, err)
}
