package ledger

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// tally adds up what the live grants take of one GPU or MIG device.
type tally struct {
	memory    grant.Bytes
	compute   int
	exclusive int
	modes     []grant.Mode
}

// checkInvariants compares the grants with each other and with the GPUs: a pod or a claim has one
// live grant, no GPU is granted beyond its memory or compute, and the grants on a physical GPU have
// one mode. Package admission keeps to these rules when it decides, so a finding here is a bug, or
// a file that something else has changed. It is pure.
func checkInvariants(grants []grant.Grant, now time.Time, inv *grant.Inventory,
	reserve grant.Bytes) []Finding {
	perUUID, perCard, owners := map[string]*tally{}, map[string]*tally{}, map[grant.Owner]int{}
	for _, g := range grants {
		if !g.Live(now) {
			continue
		}
		owners[g.Owner]++
		for _, s := range g.GPUs {
			add(perUUID, s.UUID, g, s)
			add(perCard, physicalGPU(inv, s.UUID), g, s)
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

// add adds the share s of the grant g to the tally of a GPU or MIG device.
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

// physicalGPU returns the UUID of the GPU that a MIG device is a part of, or uuid itself if it
// names no MIG device of the inventory. A mode is the physical GPU's, so modes are compared there.
func physicalGPU(inv *grant.Inventory, uuid string) string {
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

// capacity returns how much memory may be granted of a GPU or MIG device. An exclusive grant takes
// all of the GPU, including the reserve: no other grant is there to need it. known is false for a
// GPU that is not in the inventory: nothing is said about its memory then.
func capacity(inv *grant.Inventory, reserve grant.Bytes, uuid string,
	exclusive bool) (room grant.Bytes, known bool) {
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
