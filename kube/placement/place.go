package placement

import (
	"cmp"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// tries is how many sets of GPUs are tried for a pod of several containers. The best by the policy
// come first, so more are only needed if containers obstruct each other.
const tries = 1000

// Place chooses GPUs of a node for each demand of a wish, or reports that they do not fit. The
// choices are in the order of the demands.
//
// A demand that ends before others start (Init) may have the same GPUs as they. A demand that
// stands before an Init one, and is none itself, runs beside it.
func Place(w *Wish, n *Node) ([]Choice, bool) {
	if n.Closed != "" || len(w.Demands) == 0 {
		return nil, false
	}
	p := plan{wish: w, node: n, policy: n.policyOf(w), left: tries}
	if len(w.Demands) == 1 {
		if !p.single() {
			return nil, false
		}
	} else if p.prepare(); !p.place(0) {
		return nil, false
	}
	return p.choices(), true
}

// plan is a placement under way.
type plan struct {
	wish   *Wish
	node   *Node
	policy Policy
	left   int
	order  []int   // the demands, the hardest first
	chosen [][]int // by demand: indexes of GPUs
	on     [][]int // by GPU: the demands on it
}

// single places a wish of one demand: the best GPUs of those that fit.
func (p *plan) single() bool {
	p.chosen = make([][]int, 1)
	for _, group := range p.groups(0) {
		if n := p.wish.Demands[0].count(); len(group) >= n {
			p.chosen[0] = group[:n]
			return true
		}
	}
	return false
}

// prepare orders the demands: those that run on come first, whole GPUs first among them, then the
// largest. Init containers then use the GPUs of the others.
func (p *plan) prepare() {
	demands := p.wish.Demands
	p.chosen, p.on = make([][]int, len(demands)), make([][]int, len(p.node.GPUs))
	p.order = make([]int, len(demands))
	for i := range demands {
		p.order[i] = i
	}
	hardness := func(d *Demand) int {
		switch {
		case p.node.modeOf(d) == grant.Exclusive:
			return 2
		case d.all():
			return 1
		}
		return 0
	}
	slices.SortStableFunc(p.order, func(i, j int) int {
		x, y := &demands[i], &demands[j]
		return cmp.Or(number(x.Init)-number(y.Init), hardness(y)-hardness(x),
			cmp.Compare(y.Memory, x.Memory), cmp.Compare(y.Part, x.Part), y.count()-x.count())
	})
}

// place places the demands from the k-th on.
func (p *plan) place(k int) bool {
	if k == len(p.order) {
		return true
	}
	i := p.order[k]
	count := p.wish.Demands[i].count()
	for _, group := range p.groups(i) {
		for set := first(count, len(group)); set != nil && p.left > 0; set = next(set, len(group)) {
			p.left--
			p.chosen[i] = make([]int, count)
			for j, at := range set {
				p.chosen[i][j] = group[at]
				p.on[group[at]] = append(p.on[group[at]], i)
			}
			if p.place(k + 1) {
				return true
			}
			for _, g := range p.chosen[i] {
				p.on[g] = p.on[g][:len(p.on[g])-1]
			}
			p.chosen[i] = nil
		}
	}
	return false
}

// groups returns the GPUs that serve a demand beside what the pod already has, the best first. A
// grant has the same amount on each of its GPUs, so each group has one amount.
func (p *plan) groups(i int) [][]int {
	d := &p.wish.Demands[i]
	mode := p.node.modeOf(d)
	var fitting []int
	for g := range p.node.GPUs {
		if misfitOf(p.wish, d, mode, &p.node.GPUs[g]) == fits && p.beside(i, g, mode) {
			fitting = append(fitting, g)
		}
	}
	if len(fitting) < d.count() {
		return nil
	}
	slices.SortFunc(fitting, func(x, y int) int { return p.compare(d, x, y) })
	if d.count() == 1 || d.Memory > 0 || mode == grant.Exclusive {
		return [][]int{fitting}
	}
	return p.byAmount(d, mode, fitting)
}

// byAmount splits GPUs by the amount that a demand takes of them.
func (p *plan) byAmount(d *Demand, mode grant.Mode, gpus []int) (groups [][]int) {
	at := map[grant.Bytes]int{}
	for _, g := range gpus {
		amount := d.amount(&p.node.GPUs[g], mode)
		if _, known := at[amount]; !known {
			at[amount] = len(groups)
			groups = append(groups, nil)
		}
		groups[at[amount]] = append(groups[at[amount]], g)
	}
	return groups
}

// beside reports whether a GPU serves a demand beside the other demands of the pod on it.
func (p *plan) beside(i, g int, mode grant.Mode) bool {
	if p.on == nil || len(p.on[g]) == 0 {
		return true
	}
	demands := p.wish.Demands
	for _, j := range p.on[g] {
		if p.node.modeOf(&demands[j]) != mode ||
			mode == grant.MPS && (demands[i].count() > 1 || demands[j].count() > 1) {
			return false
		}
	}
	gpu := &p.node.GPUs[g]
	loads := make([]Load, 0, len(p.on[g])+1)
	for _, j := range slices.Sorted(slices.Values(append([]int{i}, p.on[g]...))) {
		d := &demands[j]
		l := Load{Init: d.Init, Memory: d.amount(gpu, mode), Compute: d.Compute}
		if mode == grant.Exclusive {
			l.Memory = gpu.Free + 1 // two of them at a time are more than there is
		}
		loads = append(loads, l)
	}
	memory, compute := Peak(loads)
	if mode == grant.Exclusive {
		return memory <= gpu.Free+1
	}
	return memory <= gpu.Free && compute <= gpu.Compute
}

// Load is what a container has of a GPU.
type Load struct {
	Init    bool
	Adopted bool // the numbers of the GPU have it already
	Memory  grant.Bytes
	Compute int
}

// Peak returns the most that the containers of a pod have of a GPU at a time. They are in the order
// in which they start: an Init one ends before the next one starts, and the others stay.
func Peak(loads []Load) (memory grant.Bytes, compute int) {
	var staying Load
	for _, l := range loads {
		if !l.Init {
			staying.Memory += l.Memory
			staying.Compute += l.Compute
			l = Load{}
		}
		memory = max(memory, staying.Memory+l.Memory)
		compute = max(compute, staying.Compute+l.Compute)
	}
	return memory, compute
}

// Uncounted returns what the containers of a pod have of a GPU beyond what its numbers have of
// them: their peak, less what is adopted.
func Uncounted(loads []Load) (memory grant.Bytes, compute int) {
	memory, compute = Peak(loads)
	for _, l := range loads {
		if l.Adopted {
			memory -= min(memory, l.Memory)
			compute -= min(compute, l.Compute)
		}
	}
	return memory, compute
}

// compare orders GPUs that fit, the best first.
func (p *plan) compare(d *Demand, x, y int) int {
	a, b := &p.node.GPUs[x], &p.node.GPUs[y]
	replicas := 0
	if p.wish.App != "" {
		replicas = a.Apps[p.wish.App] - b.Apps[p.wish.App]
	}
	own := number(p.has(x)) - number(p.has(y)) // the pod has it already
	if p.policy == Spread {
		if d.Init {
			own = -own
		}
		return cmp.Or(replicas, own, cmp.Compare(b.Free, a.Free), x-y)
	}
	used := number(b.Mode != "" || p.has(y)) - number(a.Mode != "" || p.has(x))
	return cmp.Or(replicas, used, -own, cmp.Compare(a.Free, b.Free), x-y)
}

func (p *plan) has(g int) bool { return p.on != nil && len(p.on[g]) > 0 }

// choices returns what the demands got.
func (p *plan) choices() []Choice {
	all := make([]Choice, len(p.wish.Demands))
	for i := range p.wish.Demands {
		d := &p.wish.Demands[i]
		mode := p.node.modeOf(d)
		all[i] = Choice{Container: d.Container, GPUs: p.chosen[i], Mode: mode, Init: d.Init,
			Memory: d.amount(&p.node.GPUs[p.chosen[i][0]], mode)}
		if mode != grant.Exclusive {
			all[i].Compute = d.Compute
		}
	}
	return all
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// first returns the first set of k of n things; nil if there are fewer.
func first(k, n int) []int {
	if k > n {
		return nil
	}
	set := make([]int, k)
	for i := range set {
		set[i] = i
	}
	return set
}

// next returns the set after another one in the order of their first difference; nil after the
// last.
func next(set []int, n int) []int {
	for i := len(set) - 1; i >= 0; i-- {
		if set[i] < n-len(set)+i {
			set[i]++
			for j := i + 1; j < len(set); j++ {
				set[j] = set[j-1] + 1
			}
			return set
		}
	}
	return nil
}
