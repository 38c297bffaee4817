package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
)

// use is what gpuledgerd may find in use of the GPUs: by containers beyond their grants, by
// containers without one, and by processes of the node.
func use(random *rand.Rand, v grant.View, inv grant.Inventory, boxes []*box) ledger.Found {
	found := ledger.Found{Outside: map[string]grant.Bytes{}, Held: map[string][]grant.Process{}}
	for _, g := range v.Grants {
		for _, s := range g.GPUs {
			if len(g.Bindings) > 0 && !g.Mode.IsWhole() && random.IntN(2) == 0 {
				excess := grant.Bytes(1+random.IntN(3)) * grant.GiB
				found.Excess = append(found.Excess, grant.Excess{Grant: g.ID, GPU: s.UUID, Bytes: excess})
				found.Outside[s.UUID] += excess
			}
		}
	}
	for _, d := range inv.Devices() {
		if random.IntN(4) == 0 {
			found.Outside[d.UUID()] += grant.Bytes(1+random.IntN(4)) * grant.GiB
		}
		free := slices.DeleteFunc(slices.Clone(boxes),
			func(b *box) bool { return b.pid == 0 || b.grant != "" })
		if i := random.IntN(2 * names); len(free) > 0 && i < names {
			b := free[i%len(free)]
			found.Held[d.UUID()] = []grant.Process{{PID: b.pid, Start: b.start}}
		}
	}
	return found
}

// lastStep is what was granted before the last step.
type lastStep struct {
	view grant.View
	had  map[shareOf]grant.Bytes // of each grant that there was
}

type shareOf struct {
	id   grant.ID
	uuid string
}

// checkFound: what was granted since the last step is free, by what was found before. A grant that
// was there already is not granted anew: one that had expired may be bound in the same moment, and
// a release that cannot write puts its grant back.
func (last *lastStep) checkFound(v grant.View) string {
	before := last.view
	last.view = v
	defer last.note(v)
	if !v.Now.Equal(before.Now) || !maps.Equal(v.Outside, before.Outside) ||
		!slices.Equal(v.Excess, before.Excess) || !maps.Equal(v.Held, before.Held) {
		return ""
	}
	for _, g := range v.Grants {
		for _, s := range g.GPUs {
			if !g.Live(v.Now) || s.Memory <= last.had[shareOf{g.ID, s.UUID}] {
				continue
			}
			if broken := checkFree(v, g, s.UUID); broken != "" {
				return broken
			}
		}
	}
	return ""
}

// note keeps what each grant has, as it was when it was last there.
func (last *lastStep) note(v grant.View) {
	for _, g := range v.Grants {
		for _, s := range g.GPUs {
			last.had[shareOf{g.ID, s.UUID}] = s.Memory
		}
	}
}

// checkFree: a GPU or MIG device that was granted whole is not used outside the grant. One that was
// granted in part has room for the part.
func checkFree(v grant.View, g grant.Grant, uuid string) string {
	used := v.Outside[uuid]
	for _, e := range v.Excess {
		if e.Grant == g.ID && e.GPU == uuid {
			used -= e.Bytes
		}
	}
	if g.Mode.IsWhole() {
		if used > 0 || v.Held[uuid] {
			return fmt.Sprintf("grant %s has all of %s, of which %s are used (held: %v)", g.ID, uuid, used,
				v.Held[uuid])
		}
		return ""
	}
	for _, o := range v.Grants {
		for _, s := range o.GPUs {
			if s.UUID == uuid && o.Live(v.Now) {
				used += s.Memory
			}
		}
	}
	if used > card {
		return fmt.Sprintf("grant %s has a part of %s, of which %s are granted or used: %v", g.ID, uuid, used,
			v.Outside)
	}
	return ""
}
