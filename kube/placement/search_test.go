package placement

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// A pod of several containers that do not fit together must not keep a filter of a whole cluster
// busy: other pods wait for it.
func TestDeadEndsOfAPodThatDoesNotFit(t *testing.T) {
	times := func(n int, d Demand) Wish { return wish(slices.Repeat([]Demand{d}, n)...) }
	whole := Demand{GPUs: 1, Mode: grant.Exclusive}
	equal := func(int, *GPU) {}
	for _, c := range []struct {
		name  string
		wish  Wish
		nodes int
		gpu   func(i int, g *GPU) // of the 8 of a node
		most  int
	}{
		{"a whole GPU more than there are", times(8, whole), 200, func(i int, g *GPU) {
			if i == 0 {
				g.Mode, g.Free, g.Served = grant.Limit, 10*grant.GiB, 1
			}
		}, 0},
		{"more memory than there is", times(17, gib(8)), 200, equal, 0},
		{"more compute than there is", times(9, Demand{GPUs: 1, Memory: grant.GiB, Compute: 90}), 200, equal,
			0},
		{"two do not fit on one of equal GPUs", times(9, gib(9)), 1, equal, 50},
		{"GPUs that all differ", times(9, gib(9)), 100, func(i int, g *GPU) {
			g.Free -= grant.Bytes(i) * grant.GiB / 4
		}, deadEndsInAll},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewSearch(&c.wish)
			for range c.nodes {
				n := node()
				for i := range 8 {
					n.GPUs = append(n.GPUs, gpu(i, func(g *GPU) { c.gpu(i, g) }))
				}
				if _, fit := s.Place(&n); fit {
					t.Fatal("it fits")
				}
			}
			if got := deadEndsInAll - s.left; got > c.most {
				t.Errorf("%d dead ends, want at most %d", got, c.most)
			}
			empty := node()
			for i := range 9 {
				empty.GPUs = append(empty.GPUs, gpu(i, nil))
			}
			if _, fit := s.Place(&empty); !fit {
				t.Error("a node after these with room for it is not found")
			}
		})
	}
}

// What is left out of a search has no placement.
func TestContainersFitTogetherIfAnyChoiceFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, w := drawNode(t), drawWish(t, rapid.IntRange(2, 4).Draw(t, "containers"))
		n.GPUs, w.AtLeast = n.GPUs[:min(len(n.GPUs), 3)], 0
		mode := rapid.SampledFrom([]grant.Mode{grant.Limit, grant.MPS, grant.Exclusive}).Draw(t, "one mode")
		if rapid.Bool().Draw(t, "equal GPUs") {
			for i := range n.GPUs {
				n.GPUs[i] = gpu(i, nil)
			}
		}
		for i := range w.Demands { // so that most fit alone
			d := &w.Demands[i]
			if d.GPUs = 1; d.Mode != grant.Exclusive && mode != grant.Exclusive {
				d.Mode = mode
			}
			if i > 0 && rapid.Bool().Draw(t, "equal to the first") {
				*d = w.Demands[0]
			}
		}
		_, fit := Place(&w, &n)
		if any := anyFits(&w, &n, nil); fit != any {
			t.Fatalf("it fits: %t, by trying all: %t; %+v on %+v", fit, any, w, n)
		}
	})
}

// anyFits tries each choice of GPUs for the demands behind those that are chosen.
func anyFits(w *Wish, n *Node, chosen []Choice) bool {
	if len(chosen) == len(w.Demands) {
		return overCapacity(w, n, chosen) == "" && oneMode(n, chosen)
	}
	d := &w.Demands[len(chosen)]
	for set := first(d.count(), len(n.GPUs)); set != nil; set = next(set, len(n.GPUs)) {
		if !setFits(w, d, n, set) {
			continue
		}
		c := Choice{GPUs: slices.Clone(set), Mode: n.modeOf(d), Compute: d.Compute, Init: d.Init,
			Memory: d.amount(&n.GPUs[set[0]], n.modeOf(d))}
		if anyFits(w, n, append(slices.Clip(chosen), c)) {
			return true
		}
	}
	return false
}

// oneMode reports whether the containers of each GPU have one mode, whenever they run.
func oneMode(n *Node, choices []Choice) bool {
	for g := range n.GPUs {
		var modes []grant.Mode
		for _, c := range choices {
			if slices.Contains(c.GPUs, g) {
				modes = append(modes, c.Mode)
			}
		}
		if len(slices.Compact(modes)) > 1 {
			return false
		}
	}
	return true
}
