package campaign

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// askForRoom asks for a grant on some GPU in each mode, and compares the answer with what the
// ledger's grants leave there. The workers stand still.
func (c *campaign) askForRoom() {
	random := c.stream("room", c.counts.Round)
	for _, mode := range []grant.Mode{grant.Limit, grant.MPS, grant.Timeslice, grant.Exclusive} {
		gpu := random.IntN(gpus)
		if random.IntN(2) == 0 { // on others each mode is refused mostly
			gpu = gpuOf(mode, random)
		}
		before, err := c.node.list()
		fits, r := hasRoom(before, c.node.uuids[gpu], mode), rig.Result{}
		if err == nil {
			r, err = c.askFor(mode, gpu)
		}
		after, e := c.node.list()
		switch {
		case err != nil || e != nil:
			c.violation("a grant in mode %s on GPU %d: %v, %v", mode, gpu, err, e)
		case fits != hasRoom(after, c.node.uuids[gpu], mode): // a container has ended meanwhile
		case r.Code == 0 && fits, r.Code == 5 && !fits:
			c.counts.room(mode, fits)
		default:
			c.violation("a grant of 1 GiB in mode %s on GPU %d (fits: %t): %+v; the ledger has %+v", mode,
				gpu, fits, r, before)
		}
	}
}

// gpuOf is a GPU that workers use in a mode.
func gpuOf(mode grant.Mode, r *rand.Rand) int {
	for _, k := range kinds {
		if k.name == string(mode) {
			return k.on[r.IntN(len(k.on))]
		}
	}
	panic("unreachable")
}

// askFor asks for a grant of 1 GiB, or of the whole GPU, and releases it.
func (c *campaign) askFor(mode grant.Mode, gpu int) (rig.Result, error) {
	args := []string{"grant", "--label", "room", "--mode", string(mode), "--gpu", fmt.Sprint(gpu)}
	if mode != grant.Exclusive {
		args = append(args, "--memory", "1GiB")
	}
	r := c.node.CLI(args...)
	if r.Code != 0 {
		return r, nil
	}
	id, _, _ := strings.Cut(strings.TrimSpace(r.Stdout), ".")
	if released := c.releaseGrant(grant.ID(id)); released.Code != 0 {
		return r, fmt.Errorf("cannot release %s: %+v", id, released)
	}
	return r, nil
}

// hasRoom reports whether the grants leave a GPU room for 1 GiB in a mode, or for all of it.
func hasRoom(grants []listed, uuid string, mode grant.Mode) bool {
	used := grant.Bytes(0)
	for _, g := range grants {
		for _, share := range g.GPUs {
			if share.UUID != uuid {
				continue
			}
			if g.Mode != mode || mode == grant.Exclusive {
				return false
			}
			used += share.Memory
		}
	}
	return used+grant.GiB <= memory
}

// noRoom counts an answer to a worker.
func (t *tally) noRoom(kind string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.NoRoom == nil {
		t.NoRoom = map[string]int{}
	}
	t.NoRoom[kind]++
}

// room counts a right answer to an audit.
func (t *tally) room(mode grant.Mode, fits bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Rooms == nil {
		t.Rooms = map[string]int{}
	}
	t.Rooms[fmt.Sprintf("%s %s", mode, map[bool]string{true: "granted", false: "refused"}[fits])]++
}
