package ledger

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// tally is what the live grants take of one GPU or MIG device.
type tally struct {
	memory    grant.Bytes
	compute   int
	exclusive int
	modes     []grant.Mode
}

// judge compares the grants with each other and with the GPUs. It is pure. It checks what admission
// should have kept to, so that a bug there is noticed.
func judge(grants []grant.Grant, now time.Time, inv *grant.Inventory, reserve grant.Bytes) []Finding {
	perUUID, perCard, owners := map[string]*tally{}, map[string]*tally{}, map[grant.Owner]int{}
	for _, g := range grants {
		if !g.Live(now) {
			continue
		}
		owners[g.Owner]++
		for _, s := range g.GPUs {
			add(perUUID, s.UUID, g, s)
			add(perCard, card(inv, s.UUID), g, s)
		}
	}
	var findings []Finding
	find := func(subject, format string, args ...any) {
		findings = append(findings, Finding{Subject: subject, Problem: fmt.Sprintf(format, args...),
			Hint: hintSum})
	}
	for owner, n := range owners {
		if n > 1 && hasLink(owner) {
			find(string(owner), "the owner has %d live grants", n)
		}
	}
	for uuid, t := range perUUID {
		if room, known := capacity(inv, reserve, uuid, t.exclusive > 0); known && t.memory > room {
			find(uuid, "%s are granted of %s", t.memory, room)
		}
		if t.compute > 100 {
			find(uuid, "%d percent of its compute are granted", t.compute)
		}
		if t.exclusive > 1 {
			find(uuid, "%d grants have it exclusively", t.exclusive)
		}
	}
	for uuid, t := range perCard {
		if len(t.modes) > 1 {
			find(uuid, "its grants mix the modes %v", t.modes)
		}
	}
	return findings
}

func add(tallies map[string]*tally, uuid string, g grant.Grant, s grant.Share) {
	t := tallies[uuid]
	if t == nil {
		t = &tally{}
		tallies[uuid] = t
	}
	t.memory += s.Memory
	t.compute += g.Compute
	if g.Mode == grant.Exclusive {
		t.exclusive++
	}
	if !slices.Contains(t.modes, g.Mode) {
		t.modes = append(t.modes, g.Mode)
		slices.Sort(t.modes)
	}
}

// card is the physical GPU of a MIG device, which has the mode.
func card(inv *grant.Inventory, uuid string) string {
	if inv == nil {
		return uuid
	}
	for _, g := range inv.GPUs {
		if slices.ContainsFunc(g.MIG, func(m grant.MIGDevice) bool { return m.UUID == uuid }) {
			return g.UUID
		}
	}
	return uuid
}

// capacity is what may be granted of a GPU. An exclusive grant takes all of it, the reserve too;
// no other grant on the GPU needs it. A GPU that is not in the inventory cannot be judged.
func capacity(inv *grant.Inventory, reserve grant.Bytes, uuid string, exclusive bool) (grant.Bytes, bool) {
	if inv == nil {
		return 0, false
	}
	for _, g := range inv.GPUs {
		if g.UUID == uuid && exclusive {
			return g.Memory, true
		}
		if g.UUID == uuid {
			return g.Memory - min(g.Memory, reserve), true
		}
		for _, m := range g.MIG {
			if m.UUID == uuid {
				return m.Memory, true // a partition is granted as a whole
			}
		}
	}
	return 0, false
}
