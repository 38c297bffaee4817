package campaign

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// flips is how many bits of a round flip, one at a time.
const flips = 24

// flipBits flips single bits of the ledger's files, as a bad disk does, and brings the file back
// from a copy. A damaged grant is named, nothing is granted by it and nothing more on its GPUs.
func flipBits(c *campaign, r *rand.Rand) func() {
	c.endDaemon()
	for range flips {
		kind := []string{"state/grants/*.json", "state/grants/*.json", "run/bindings/*"}[r.IntN(3)]
		files, _ := filepath.Glob(filepath.Join(c.node.Dir, kind))
		if len(files) == 0 {
			continue
		}
		c.flip(files[r.IntN(len(files))], r)
	}
	c.node.startDaemon("")
	return nil
}

// flip flips one bit of a file.
func (c *campaign) flip(path string, r *rand.Rand) {
	whole, err := os.ReadFile(path)
	if err != nil || len(whole) == 0 {
		return
	}
	info, err := os.Stat(path)
	must(c.t, err)
	at, bit := r.IntN(len(whole)), r.IntN(8)
	damaged := append([]byte{}, whole...)
	damaged[at] ^= 1 << bit
	name := strings.TrimPrefix(path, c.node.Dir+"/")
	where := fmt.Sprintf("%s, bit %d of byte %d (%q becomes %q)", name, bit, at, around(whole, at),
		around(damaged, at))
	before, err := c.node.list()
	must(c.t, err)
	must(c.t, os.WriteFile(path, damaged, info.Mode().Perm()))
	after, err := c.node.list()
	if err != nil {
		c.violation("%s: nothing is listed: %v", where, err)
	}
	if strings.HasPrefix(name, "run/") {
		c.flippedBinding(where, before, after)
	} else {
		c.flipped(where, before, after)
	}
	must(c.t, os.WriteFile(path+".copy", whole, info.Mode().Perm()), os.Rename(path+".copy", path))
	c.sound()
}

func around(text []byte, at int) []byte { return text[max(0, at-12):min(len(text), at+12)] }

// flipped compares the listings. Each grant is as it was, or it is named as damaged.
func (c *campaign) flipped(where string, before, after []listed) {
	check := c.node.CLI("check")
	now := map[grant.ID]listed{}
	for _, g := range after {
		now[g.ID] = g
	}
	for _, b := range before {
		a, there := now[b.ID]
		switch {
		case there && same(a, b):
		case check.Code == 1 && strings.Contains(check.Stdout, string(b.ID)):
			c.closed(where, b)
		default:
			c.violation("%s: grant %+v is now %+v, and gpuledger check says %+v", where, b, a, check)
		}
	}
}

// flippedBinding: no grant that a container uses is free.
func (c *campaign) flippedBinding(where string, before, after []listed) {
	now := map[grant.ID]grant.State{}
	for _, g := range after {
		now[g.ID] = g.State
	}
	for _, b := range before {
		if state, there := now[b.ID]; b.State != grant.Free && (!there || state == grant.Free) {
			c.violation("%s: grant %s was %s, and is now %q", where, b.ID, b.State, state)
		} else if state != b.State {
			c.refused(where, b, "")
		}
	}
}

func same(a, b listed) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) }

// closed: a damaged grant admits no container, its GPUs take no grant, and a container without a
// GPU starts.
func (c *campaign) closed(where string, g listed) {
	index := fmt.Sprint(g.GPUs[0].Index)
	args := []string{"grant", "--mode", string(g.Mode), "--gpu", index}
	if g.Mode != grant.Exclusive {
		args = append(args, "--memory", "1MiB")
	}
	if r := c.node.CLI(args...); r.Code != 5 && r.Code != 3 {
		id, _, _ := strings.Cut(strings.TrimSpace(r.Stdout), ".")
		_ = c.node.CLI("release", id)
		c.violation("%s: a grant on GPU %s beside the damaged %s: %+v", where, index, g.ID, r)
	}
	c.refused(where, g, "grant-in-use")
	b := c.node.bundle(c.node.Node, "harmless", rig.Shell("exit 0"))
	if r := b.Run(); r.Code != 0 {
		c.violation("%s: a container without a GPU: %+v", where, r)
	}
	b.End()
}

// refused: no container is created with the grant, and not for that reason.
func (c *campaign) refused(where string, g listed, not string) {
	for _, w := range c.workers {
		for _, s := range w.slots {
			if s.reference.ID != g.ID {
				continue
			}
			b := c.node.bundle(c.node.Node, "flipped",
				rig.Annotation("gpuledger.dev/grant", s.reference.String()))
			r := b.Create()
			if r.Code == 0 || !strings.Contains(r.Stderr, "refused (") ||
				not != "" && strings.Contains(r.Stderr, "refused ("+not+")") {
				c.violation("%s: a create with grant %s: %+v", where, g.ID, r)
			}
			b.End()
		}
	}
}
