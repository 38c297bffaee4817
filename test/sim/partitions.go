package sim

import (
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

// division is how an administrator has divided a GPU into MIG devices.
type division struct {
	devices int // 0: it is a whole
	number  int // of its divisions so far, for each has devices of its own
}

const (
	slice   = 2 * grant.GiB // the memory of a MIG device
	profile = "1g.2gb"
)

// look takes the inventory, in which a GPU may have failed or recovered.
func (w *world) look() {
	if w.random.IntN(2) == 0 {
		i := w.random.IntN(w.gpus)
		w.sick[i] = !w.sick[i]
	}
	if w.divides && w.random.IntN(2) == 0 {
		w.divide(w.random.IntN(w.gpus))
	}
	if w.scanner == nil || w.scanner.done { // one takes the inventory at a time (gpu.Lock)
		w.scanner = w.begin("scan", func(_ *process, n *node.Node) { _ = w.scan(n) })
	}
}

// divide divides a GPU, or makes it a whole again. The inventory does not know yet.
func (w *world) divide(i int) {
	p := &w.divisions[i]
	if p.devices > 0 {
		p.devices = 0
	} else {
		p.devices = 1 + w.random.IntN(3)
		p.number++
	}
	w.trace("GPU %d has %d MIG devices", i, p.devices)
}

// migDevices are those of a GPU.
func (m *machine) migDevices(i int) (devices []grant.MIGDevice) {
	of := m.divisions[i]
	for k := range of.devices {
		devices = append(devices, grant.MIGDevice{UUID: fmt.Sprintf("MIG-%d-%d-%d", i, of.number, k),
			Profile: profile, Memory: slice, GI: 1 + k, Caps: [2]int{100*i + 10 + k, 100*i + 20 + k}})
	}
	return devices
}

// sawInventory notes the inventory that everybody reads from now on, for the processes that have
// locked the ledger, too: they may read it again.
func (w *world) sawInventory() {
	current := w.current
	w.current = nil
	inv, problem := w.eyes.Inventory()
	if w.current = current; problem != nil {
		inv = grant.Inventory{}
	}
	w.inventory = inv
	for _, p := range w.all {
		if !p.done {
			p.inventories = append(p.inventories, inv)
		}
	}
}

// sawStep is when a step has been made, which may have changed the inventory.
func (w *world) sawStep(s host.Step) {
	path := gpu.Path(w.eyes.Policy.StateDir)
	if s.Kind == host.Renames && s.To == path || s.Kind == host.Removes && s.Path == path {
		w.sawInventory()
	}
}

// sawLock is when a process has got a lock. What it decides with the ledger's is decided by an
// inventory from then on.
func (w *world) sawLock(p *process, path string) {
	if path == w.path("run/lock") {
		v := w.inside()
		w.sawGrants(v)
		p.ledger = &v
		w.from, w.to = w.now, w.now
		p.inventories = []grant.Inventory{w.inventory}
	}
}

// checkPlaced: what is admitted, or granted, is there and can be used, by one of the inventories
// since the process had the ledger's lock.
func checkPlaced(p *process, g grant.Grant) string {
	usable := func(inv grant.Inventory) bool {
		return !slices.ContainsFunc(g.GPUs, func(s grant.Share) bool {
			d, known := inv.Device(s.UUID)
			return !known || d.GPU.Health != grant.Healthy || (d.MIG != nil) != (g.Mode == grant.MIG) ||
				d.MIG == nil && len(d.GPU.MIG) > 0
		})
	}
	if !slices.ContainsFunc(p.inventories, usable) {
		return fmt.Sprintf("%s has grant %s of %v, which the inventory says cannot be used", p.name,
			g.ID, g.UUIDs())
	}
	return ""
}

// checkDevices: no MIG device has two grants.
func checkDevices(v grant.View) string {
	has := map[string]grant.ID{}
	for _, g := range v.Grants {
		if g.Mode != grant.MIG || !g.Live(v.Now) {
			continue
		}
		for _, s := range g.GPUs {
			if other := has[s.UUID]; other != "" {
				return fmt.Sprintf("%s has the grants %s and %s", s.UUID, other, g.ID)
			}
			has[s.UUID] = g.ID
		}
	}
	return ""
}

// checkModes: the grants of a card have one mode, those of its MIG devices among them. A MIG device
// that is not in the inventory is gone for good: its UUID does not come back.
func checkModes(v grant.View, inv grant.Inventory) string {
	first := map[string]grant.Grant{}
	for _, g := range v.Grants {
		if !g.Live(v.Now) {
			continue
		}
		for _, s := range g.GPUs {
			of := s.UUID
			if d, known := inv.Device(s.UUID); known {
				of = d.GPU.UUID
			}
			other, had := first[of]
			if had && other.Mode != g.Mode {
				return fmt.Sprintf("%s is in mode %s by grant %s, and in mode %s by grant %s", of, other.Mode,
					other.ID, g.Mode, g.ID)
			}
			first[of] = g
		}
	}
	return ""
}
