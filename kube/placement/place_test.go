package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpuledger/gpuledger/internal/grant"
)

var shared = []grant.Mode{grant.Exclusive, grant.Timeslice, grant.Limit, grant.MPS}

// gpu is an empty GPU of 16 GiB.
func gpu(i int, change func(*GPU)) GPU {
	g := GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, Product: "A", Memory: 16 * grant.GiB,
		Free: 16 * grant.GiB, Compute: 100, Modes: shared}
	if change != nil {
		change(&g)
	}
	return g
}

// used is a GPU in a mode with this much free.
func used(i int, mode grant.Mode, free grant.Bytes) GPU {
	return gpu(i, func(g *GPU) { g.Mode, g.Free, g.Served = mode, free, 1 })
}

func node(gpus ...GPU) Node { return Node{Name: "a", GPUs: gpus} }

func wish(demands ...Demand) Wish {
	for i := range demands {
		if demands[i].Container == "" {
			demands[i].Container = string(rune('x' + i))
		}
	}
	return Wish{Demands: demands}
}

func gib(n int) Demand { return Demand{GPUs: 1, Memory: grant.Bytes(n) * grant.GiB} }

// placed is a placement in one line, or why there is none.
func placed(w Wish, n Node) string {
	choices, fit := Place(&w, &n)
	if !fit {
		return Why(&w, []*Node{&n})
	}
	var parts []string
	for _, c := range choices {
		at := fmt.Sprint(c.GPUs)
		parts = append(parts, fmt.Sprintf("%s %s %s %s", c.Container, at, c.Memory, c.Mode))
	}
	return strings.Join(parts, "; ")
}

func TestPlace(t *testing.T) {
	whole := Demand{GPUs: 1, Mode: grant.Exclusive}
	for _, c := range []struct {
		name string
		wish Wish
		node Node
		want string
	}{
		{"an empty node: the first GPU", wish(gib(4)), node(gpu(0, nil), gpu(1, nil)), "x [0] 4GiB limit"},
		{"binpack: the fullest that fits", wish(gib(4)),
			node(gpu(0, nil), used(1, grant.Limit, 8*grant.GiB), used(2, grant.Limit, 5*grant.GiB)),
			"x [2] 4GiB limit"},
		{"spread: the emptiest", Wish{Demands: wish(gib(4)).Demands, Policy: Spread},
			node(used(0, grant.Limit, 8*grant.GiB), gpu(1, nil)), "x [1] 4GiB limit"},
		{"the node's policy", wish(gib(4)), Node{Name: "a", Policy: Spread,
			GPUs: []GPU{used(0, grant.Limit, 8*grant.GiB), gpu(1, nil)}}, "x [1] 4GiB limit"},
		{"a GPU is in one mode at a time", wish(Demand{GPUs: 1, Memory: grant.GiB, Mode: grant.Timeslice}),
			node(used(0, grant.Limit, 8*grant.GiB), gpu(1, nil)), "x [1] 1GiB timeslice"},
		{"the node's mode", wish(gib(1)), Node{Name: "a", Mode: grant.MPS, GPUs: []GPU{gpu(0, nil)}},
			"x [0] 1GiB mps"},
		{"a whole GPU is an empty one", wish(whole), node(used(0, grant.Limit, 15*grant.GiB), gpu(1, nil)),
			"x [1] 0MiB exclusive"},
		{"a whole GPU is one that no container has open without a grant", wish(whole),
			node(gpu(0, func(g *GPU) { g.Held = true }), gpu(1, nil)), "x [1] 0MiB exclusive"},
		{"a share beside such a container", wish(gib(1)),
			node(gpu(0, func(g *GPU) { g.Held = true })), "x [0] 1GiB limit"},
		{"a share of compute, where it is kept", wish(Demand{GPUs: 1, Memory: grant.GiB, Compute: 30}),
			node(gpu(0, func(g *GPU) { g.Unkept = true }), gpu(1, nil)), "x [1] 1GiB limit"},
		{"a share of compute in another mode",
			wish(Demand{GPUs: 1, Memory: grant.GiB, Compute: 30, Mode: grant.Timeslice}),
			node(gpu(0, func(g *GPU) { g.Unkept = true })), "x [0] 1GiB timeslice"},
		{"no share of compute that is kept", wish(Demand{GPUs: 1, Memory: grant.GiB, Compute: 30}),
			node(gpu(0, func(g *GPU) { g.Unkept = true })),
			"no GPU has 1GiB and 30% of its compute free in mode limit: node a gives no share of compute " +
				"in mode limit, because nothing there keeps a container to it"},
		{"N over M: different GPUs", wish(Demand{GPUs: 2, Memory: 4 * grant.GiB}),
			node(used(0, grant.Limit, 3*grant.GiB), gpu(1, nil), gpu(2, nil)), "x [1 2] 4GiB limit"},
		{"a part of each GPU's own size", wish(Demand{GPUs: 1, Part: 250}),
			node(gpu(0, func(g *GPU) {
				g.Memory, g.Space, g.Free = 17*grant.GiB, 16160*grant.MiB, 16160*grant.MiB
			})),
			"x [0] 4040MiB limit"},
		{"parts over GPUs of different sizes: those of one size",
			wish(Demand{GPUs: 2, Part: 500}),
			node(gpu(0, func(g *GPU) { g.Memory, g.Free = 8*grant.GiB, 8*grant.GiB }), gpu(1, nil),
				gpu(2, nil)), "x [1 2] 8GiB limit"},
		{"all memory as a share", wish(Demand{GPUs: 1, Mode: grant.Timeslice}),
			node(used(0, grant.Timeslice, 15*grant.GiB), gpu(1, func(g *GPU) { g.Free = 15 * grant.GiB })),
			"x [1] 15GiB timeslice"},
		{"an odd amount is rounded up to what the ledger grants",
			wish(Demand{GPUs: 1, Memory: grant.GiB + 1}), node(gpu(0, nil)), "x [0] 1025MiB limit"},
		{"containers of a pod together", wish(gib(10), gib(6), gib(16)), node(gpu(0, nil), gpu(1, nil)),
			"x [1] 10GiB limit; y [1] 6GiB limit; z [0] 16GiB limit"},
		{"shares beside a whole GPU", wish(gib(1), whole), node(gpu(0, nil), gpu(1, nil)),
			"x [1] 1GiB limit; y [0] 0MiB exclusive"},
		{"an init container has the GPU of the next",
			wish(Demand{GPUs: 1, Memory: 12 * grant.GiB, Init: true}, gib(8)), node(gpu(0, nil), gpu(1, nil)),
			"x [0] 12GiB limit; y [0] 8GiB limit"},
		{"one that runs on is beside the init container after it",
			wish(gib(8), Demand{GPUs: 1, Memory: 9 * grant.GiB, Init: true}), node(gpu(0, nil), gpu(1, nil)),
			"x [0] 8GiB limit; y [1] 9GiB limit"},
		{"containers that obstruct each other at first",
			wish(Demand{GPUs: 1, Part: 900}, gib(4)),
			node(used(0, grant.Limit, 15*grant.GiB), used(1, grant.Limit, 4*grant.GiB)),
			"x [0] 14745MiB limit; y [1] 4GiB limit"},
		{"of equal containers one starts before the init container",
			Wish{Policy: Spread,
				Demands: wish(gib(9), Demand{GPUs: 1, Memory: 12 * grant.GiB, Init: true}, gib(9)).Demands},
			node(gpu(0, nil), used(1, grant.Limit, 10*grant.GiB)),
			"x [1] 9GiB limit; y [0] 12GiB limit; z [0] 9GiB limit"},
		{"replicas on different GPUs", Wish{Demands: wish(gib(1)).Demands, App: "u1"},
			node(gpu(0, func(g *GPU) { g.Mode, g.Apps = grant.Limit, map[string]int{"u1": 1} }), gpu(1, nil)),
			"x [1] 1GiB limit"},
		{"replicas where no other GPU fits", Wish{Demands: wish(gib(4)).Demands, App: "u1"},
			node(gpu(0, func(g *GPU) { g.Mode, g.Apps = grant.Limit, map[string]int{"u1": 1} }),
				used(1, grant.Limit, grant.GiB)), "x [0] 4GiB limit"},
		{"a product", Wish{Demands: wish(gib(1)).Demands, Products: []string{"B", "C"}},
			node(gpu(0, nil), gpu(1, func(g *GPU) { g.Product = "C" })), "x [1] 1GiB limit"},
		{"a part of a product's name", Wish{Demands: wish(gib(1)).Demands, Products: []string{"T4", "a100"}},
			node(gpu(0, nil), gpu(1, func(g *GPU) { g.Product = "NVIDIA A100-SXM4-80GB" })),
			"x [1] 1GiB limit"},
		{"a GPU of some size", Wish{Demands: wish(whole).Demands, AtLeast: 40 * grant.GiB},
			node(gpu(0, nil), gpu(1, func(g *GPU) { g.Memory, g.Free = 80*grant.GiB, 80*grant.GiB })),
			"x [1] 0MiB exclusive"},
		{"MPS over two GPUs: empty ones", wish(Demand{GPUs: 2, Memory: grant.GiB, Mode: grant.MPS}),
			node(used(0, grant.MPS, 8*grant.GiB), gpu(1, nil), gpu(2, nil)), "x [1 2] 1GiB mps"},
		{"MPS beside another", wish(Demand{GPUs: 1, Memory: grant.GiB, Mode: grant.MPS}),
			node(gpu(0, nil), used(1, grant.MPS, 8*grant.GiB)), "x [1] 1GiB mps"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := placed(c.wish, c.node); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestWhyNot(t *testing.T) {
	whole := Demand{GPUs: 1, Mode: grant.Exclusive}
	full := node(used(0, grant.Limit, 2*grant.GiB), used(1, grant.Limit, 6*grant.GiB))
	for _, c := range []struct {
		name string
		wish Wish
		node Node
		want string
	}{
		{"memory", wish(gib(8)), full,
			"no GPU has 8GiB free in mode limit: the most is 6GiB, GPU 1 of node a"},
		{"compute", wish(Demand{GPUs: 1, Memory: grant.GiB, Compute: 50}),
			node(gpu(0, func(g *GPU) { g.Compute = 40 })),
			"no GPU has 1GiB and 50% of its compute free in mode limit: the most is 40%, GPU 0 of node a"},
		{"several GPUs", wish(Demand{GPUs: 2, Memory: 4 * grant.GiB}), full,
			"no node has 2 GPUs, each with 4GiB free in mode limit: the most are 1, on node a"},
		{"parts of GPUs that have different sizes", wish(Demand{GPUs: 2, Part: 500}),
			node(gpu(0, nil), gpu(1, func(g *GPU) { g.Memory, g.Free = 8*grant.GiB, 8*grant.GiB })),
			"no node has 2 GPUs, each with 50% of its memory free in mode limit: the most are 2, on node " +
				"a, and they are of different sizes"},
		{"a whole GPU", wish(whole), full,
			"no GPU has all of itself free (mode exclusive): the closest is GPU 1 of node a, which is in " +
				"use in mode limit"},
		{"another mode", wish(Demand{GPUs: 1, Memory: grant.GiB, Mode: grant.MPS}), full,
			"no GPU has 1GiB free in mode mps: the closest is GPU 1 of node a, which is in use in mode " +
				"limit"},
		{"a mode that is not allowed", wish(Demand{GPUs: 1, Memory: grant.GiB, Mode: grant.MPS}),
			node(gpu(0, func(g *GPU) { g.Modes = []grant.Mode{grant.Limit} })),
			"no GPU takes grants in mode mps: GPU 0 of node a is for limit"},
		{"a share of a node for whole GPUs", wish(gib(1)),
			Node{Name: "a", Mode: grant.Exclusive, GPUs: []GPU{gpu(0, nil)}},
			"no GPU gives shares: node a is for whole GPUs"},
		{"a product", Wish{Demands: wish(gib(1)).Demands, Products: []string{"B", "C"}}, full,
			`no GPU is one of B, C: GPU 1 of node a is "A"`},
		{"a size", Wish{Demands: wish(gib(1)).Demands, AtLeast: 40 * grant.GiB}, full,
			"no GPU has 40GiB of memory in all: the largest of its kind has 16GiB, GPU 1 of node a"},
		{"a closed GPU", wish(gib(1)), node(gpu(0, func(g *GPU) { g.Closed = "is unhealthy: Xid 79" })),
			"no GPU has 1GiB free in mode limit: GPU 0 of node a takes no grant, it is unhealthy: Xid 79"},
		{"a closed node", wish(gib(1)), Node{Name: "a", Closed: "has no inventory"},
			"no node takes GPU pods now: node a has no inventory"},
		{"containers together", wish(gib(6), gib(5)), full,
			"each container fits on a node alone, and no node has room for all of them together"},
		{"one of several containers", wish(gib(1), gib(7)), full,
			"container y: no GPU has 7GiB free in mode limit: the most is 6GiB, GPU 1 of node a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := placed(c.wish, c.node); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
	w := wish(gib(1))
	if got := Why(&w, nil); got != "no node that the pod could go to publishes GPUs of gpuledger" {
		t.Error(got)
	}
}

func TestScore(t *testing.T) {
	score := func(w Wish, n Node) int {
		t.Helper()
		choices, fit := Place(&w, &n)
		if !fit {
			t.Fatal(Why(&w, []*Node{&n}))
		}
		return Score(&w, &n, choices)
	}
	full, half := node(used(0, grant.Limit, 4*grant.GiB)),
		node(used(0, grant.Limit, 8*grant.GiB), gpu(1, nil))
	one, two := node(gpu(0, nil), used(1, grant.Limit, 0)), node(gpu(0, nil), gpu(1, nil))
	share := wish(gib(4))
	for i, order := range [][]int{
		{score(share, full), score(share, half), score(share, one), score(share, two)},
		{score(Wish{Demands: share.Demands, Policy: Spread}, two),
			score(Wish{Demands: share.Demands, Policy: Spread}, half),
			score(Wish{Demands: share.Demands, Policy: Spread}, full)},
		{score(Wish{Demands: share.Demands, App: "u"}, half), score(Wish{Demands: share.Demands, App: "u"},
			node(gpu(0, func(g *GPU) {
				g.Mode, g.Free, g.Apps = grant.Limit, 4*grant.GiB, map[string]int{"u": 1}
			})))},
	} {
		if !slices.IsSortedFunc(order, func(a, b int) int { return b - a }) ||
			order[0] == order[len(order)-1] || order[0] > Best || order[len(order)-1] < 0 {
			t.Errorf("order %d: %v", i, order)
		}
	}
}

func drawGPU(t *rapid.T, i int) GPU {
	g := gpu(i, nil)
	g.Memory = grant.Bytes(rapid.SampledFrom([]int{8, 16}).Draw(t, "memory")) * grant.GiB
	g.Free = g.Memory
	if g.Mode = rapid.SampledFrom([]grant.Mode{"", "", grant.Limit, grant.Timeslice, grant.MPS,
		grant.Exclusive}).Draw(t, "mode"); g.Mode != "" {
		g.Free = grant.Bytes(rapid.IntRange(0, int(g.Memory/grant.GiB)).Draw(t, "free")) * grant.GiB
		g.Compute = rapid.SampledFrom([]int{0, 30, 100}).Draw(t, "compute")
		g.Served = rapid.IntRange(1, 2).Draw(t, "served")
	}
	if rapid.IntRange(0, 7).Draw(t, "closed") == 0 {
		g.Closed = "is unhealthy"
	}
	if rapid.IntRange(0, 7).Draw(t, "pool") == 0 {
		g.Modes = []grant.Mode{grant.Limit}
	}
	if rapid.Bool().Draw(t, "app") {
		g.Apps = map[string]int{"u": 1}
	}
	return g
}

func drawDemand(t *rapid.T, i int) Demand {
	d := Demand{Container: fmt.Sprint("c", i), GPUs: rapid.IntRange(1, 3).Draw(t, "count"),
		Init: rapid.IntRange(0, 3).Draw(t, "init") == 0,
		Mode: rapid.SampledFrom([]grant.Mode{"", grant.Limit, grant.Timeslice, grant.MPS,
			grant.Exclusive}).Draw(t, "wanted mode")}
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		d.Part = rapid.SampledFrom([]int{250, 500, 1000}).Draw(t, "part")
	case 1:
	default:
		d.Memory = grant.Bytes(rapid.IntRange(1, 12).Draw(t, "wanted memory")) * grant.GiB
		d.Compute = rapid.SampledFrom([]int{0, 20, 60}).Draw(t, "wanted compute")
	}
	if d.Mode == grant.Exclusive {
		d.Memory, d.Part, d.Compute = 0, 0, 0
	}
	return d
}

func drawNode(t *rapid.T) Node {
	n := Node{Name: "a", Mode: rapid.SampledFrom([]grant.Mode{"", grant.MPS, grant.Exclusive}).Draw(t,
		"node mode"), Policy: rapid.SampledFrom([]Policy{"", Spread}).Draw(t, "policy")}
	for i := range rapid.IntRange(0, 4).Draw(t, "gpus") {
		n.GPUs = append(n.GPUs, drawGPU(t, i))
	}
	return n
}

func drawWish(t *rapid.T, containers int) Wish {
	w := Wish{App: rapid.SampledFrom([]string{"", "u"}).Draw(t, "application"),
		AtLeast: rapid.SampledFrom([]grant.Bytes{0, 0, 10 * grant.GiB}).Draw(t, "at least")}
	for i := range containers {
		w.Demands = append(w.Demands, drawDemand(t, i))
	}
	return w
}

// A placement never has more of a GPU than is free, at no time of the pod's life, and never two
// modes.
func TestAPlacementIsNeverMoreThanThereIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := drawNode(t)
		w := drawWish(t, rapid.IntRange(1, 4).Draw(t, "containers"))
		if rapid.Bool().Draw(t, "small") { // containers that come to one GPU
			n.GPUs, w.AtLeast = n.GPUs[:min(len(n.GPUs), 2)], 0
			for i := range w.Demands {
				w.Demands[i].GPUs, w.Demands[i].Mode = 1, w.Demands[0].Mode
			}
		}
		choices, fit := Place(&w, &n)
		if !fit {
			if why := Why(&w, []*Node{&n}); why == "" || strings.Contains(why, "\n") {
				t.Fatalf("it does not say why: %q", why)
			}
			return
		}
		if score := Score(&w, &n, choices); score < 0 || score > Best {
			t.Fatalf("score %d", score)
		}
		if problem := overCapacity(&w, &n, choices); problem != "" {
			t.Fatalf("%s: %+v", problem, choices)
		}
	})
}

// overCapacity checks choices the slow way: at each time of the pod's life, what runs then.
func overCapacity(w *Wish, n *Node, choices []Choice) string {
	for now := range choices {
		memory, compute := map[int]grant.Bytes{}, map[int]int{}
		running := map[int][]grant.Mode{}
		for i, c := range choices {
			if i > now || i < now && w.Demands[i].Init {
				continue
			}
			if len(c.GPUs) != w.Demands[i].count() || len(slices.Compact(slices.Sorted(
				slices.Values(c.GPUs)))) != len(c.GPUs) {
				return "not so many different GPUs"
			}
			for _, g := range c.GPUs {
				memory[g] += c.Memory
				compute[g] += c.Compute
				running[g] = append(running[g], c.Mode)
			}
		}
		for g, modes := range running {
			at := n.GPUs[g]
			if at.Mode != "" {
				modes = append(modes, at.Mode)
			}
			switch whole := slices.Contains(modes, grant.Exclusive); {
			case memory[g] > at.Free || compute[g] > at.Compute:
				return fmt.Sprintf("GPU %d has %s and %d%% free", g, at.Free, at.Compute)
			case whole && len(modes) > 1 || len(slices.Compact(slices.Clone(modes))) > 1:
				return fmt.Sprintf("GPU %d is in modes %v", g, modes)
			case at.Closed != "" || at.Memory < w.AtLeast:
				return fmt.Sprintf("GPU %d takes no such grant", g)
			}
		}
	}
	return ""
}

// For one container it fits if, and only if, any set of GPUs fits.
func TestOneContainerFitsIfAnySetOfGPUsFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, w := drawNode(t), drawWish(t, 1)
		d := &w.Demands[0]
		any := false
		for set := first(d.count(), len(n.GPUs)); set != nil; set = next(set, len(n.GPUs)) {
			any = any || setFits(&w, d, &n, set)
		}
		choices, fit := Place(&w, &n)
		if fit != any {
			t.Fatalf("it fits: %t, by trying all: %t; %+v on %+v", fit, any, w, n)
		}
		if fit && !setFits(&w, d, &n, slices.Sorted(slices.Values(choices[0].GPUs))) {
			t.Fatalf("the GPUs %v do not fit", choices[0].GPUs)
		}
		if len(n.GPUs) == 0 {
			return
		}
		if why := NewSearch(&w).whyNot(d, []*Node{&n}); (why == "") != any {
			t.Fatalf("it fits: %t, and why not: %q", any, why)
		}
	})
}

// setFits is the oracle: the rules about a grant, written once more.
func setFits(w *Wish, d *Demand, n *Node, set []int) bool {
	mode := d.Mode
	if mode == "" {
		mode = max(n.Mode, "")
	}
	if mode == "" {
		mode = grant.Limit
	}
	if mode == grant.Exclusive && (d.Memory > 0 || d.Part > 0) {
		return false
	}
	amounts := map[grant.Bytes]bool{}
	for _, i := range set {
		g := n.GPUs[i]
		ok := g.Closed == "" && g.Memory >= w.AtLeast && slices.Contains(g.Modes, mode)
		switch {
		case mode == grant.Exclusive:
			ok = ok && g.Mode == ""
		case d.Memory > 0:
			ok = ok && d.Memory <= g.Free
			amounts[d.Memory] = true
		case d.Part > 0:
			amount := g.Memory * grant.Bytes(d.Part) / 1000
			ok = ok && amount <= g.Free
			amounts[amount] = true
		default:
			ok = ok && g.Mode == "" && g.Free > 0
			amounts[g.Free] = true
		}
		if mode != grant.Exclusive {
			ok = ok && (g.Mode == "" || g.Mode == mode) && d.Compute <= g.Compute
		}
		if mode == grant.MPS {
			ok = ok && (g.Mode == "" || g.Served == 1 && len(set) == 1)
		}
		if !ok {
			return false
		}
	}
	return len(amounts) <= 1
}
