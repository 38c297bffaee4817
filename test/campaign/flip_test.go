package campaign

import (
	"bytes"
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

// sumName is how each file of the ledger begins. The sum covers all that follows (ADR 101): a flip
// behind it must be noticed. One before leaves a file without a sum, or none of the ledger's.
const sumName = "{\n  \"sum\": \""

// flipBits flips single bits of the ledger's files, as a bad disk does, and brings the file back
// from a copy. A damaged file is named, nothing is granted by it and nothing more on its GPUs.
func flipBits(c *campaign, r *rand.Rand) func() {
	if grants, _ := filepath.Glob(c.node.Dir + "/state/grants/*.json"); len(grants) < len(c.workers)/4 {
		c.calm(func(w *worker) { w.live() }) // the round before has ended all
	}
	c.endDaemon()
	flipped := 0
	for range flips {
		kind := []string{"state/grants/*.json", "state/grants/*.json", "run/bindings/*"}[r.IntN(3)]
		files, _ := filepath.Glob(filepath.Join(c.node.Dir, kind))
		if len(files) == 0 {
			continue
		}
		c.flip(files[r.IntN(len(files))], r)
		flipped++
	}
	if flipped == 0 {
		c.t.Errorf("round %d: the ledger has no file of which a bit could flip", c.counts.Round)
	}
	c.node.startDaemon("")
	return nil
}

// The files of which bits flip, in the tally.
const (
	ofGrant   = "of a grant"
	ofBinding = "of a binding"
)

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
	check := c.node.CLI("check")
	entry := strings.TrimSuffix(filepath.Base(path), ".json")
	named := check.Code == 1 && strings.Contains(check.Stdout, entry)
	switch {
	case !bytes.HasPrefix(whole, []byte(sumName)):
		c.violation("%s: the file has no sum: %q", where, whole)
	case at >= len(sumName) && !named:
		c.violation("%s: gpuledger check does not notice it: %+v", where, check)
	}
	if strings.HasPrefix(name, "run/") {
		c.counts.flip(ofBinding, named)
		c.flippedBinding(where, before, after)
	} else {
		c.counts.flip(ofGrant, named)
		c.flipped(where, grant.ID(entry), named, before, after)
	}
	must(c.t, os.WriteFile(path+".copy", whole, info.Mode().Perm()), os.Rename(path+".copy", path))
	c.sound()
}

func around(text []byte, at int) []byte { return text[max(0, at-12):min(len(text), at+12)] }

// flipped compares the listings. Each grant is as it was, but the one that is named as damaged.
func (c *campaign) flipped(where string, id grant.ID, damaged bool, before, after []listed) {
	now := map[grant.ID]listed{}
	for _, g := range after {
		now[g.ID] = g
	}
	for _, b := range before {
		a, there := now[b.ID]
		switch {
		case b.ID == id && damaged && there && same(a, b):
			c.violation("%s: grant %s is listed as if it were whole", where, b.ID)
		case b.ID == id && damaged:
			c.closed(where, b)
		case !there || !same(a, b):
			c.violation("%s: grant %+v is now %+v", where, b, a)
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
