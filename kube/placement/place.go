package placement

import (
	"cmp"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Place chooses GPUs of a node for each demand of a wish, or reports that they do not fit. The
// choices are in the order of the demands.
//
// A demand that ends before others start (Init) may have the same GPUs as they. A demand that
// stands before an Init one, and is none itself, runs beside it.
func Place(w *Wish, n *Node) ([]Choice, bool) { return NewSearch(w).Place(n) }

// Place is Place for the search's wish.
func (s *Search) Place(n *Node) ([]Choice, bool) {
	demands := s.wish.Demands
	if n.Closed != "" || len(demands) == 0 {
		return nil, false
	}
	p := plan{Search: s, node: n, policy: n.policyOf(s.wish), stop: max(0, s.left-deadEnds)}
	for i := range demands {
		serving := p.servingAlone(&demands[i])
		if len(serving) < demands[i].count() {
			return nil, false
		}
		p.serving = append(p.serving, serving)
	}
	if len(demands) == 1 {
		if !p.single() {
			return nil, false
		}
	} else if p.prepare(); p.exceeds() || !p.place(0) {
		return nil, false
	}
	return p.choices(), true
}

// plan is a placement under way.
type plan struct {
	*Search
	node    *Node
	policy  Policy
	stop    int             // the search's dead ends that are left to other nodes
	serving [][]int         // by demand: the GPUs that serve it alone
	order   []int           // the demands, the hardest first
	chosen  [][]int         // by demand: indexes of GPUs
	on      [][]int         // by GPU: the demands on it
	staying []total         // by GPU: what those of them have that do not end first
	failed  map[string]bool // the states that led to no placement
	gpus    []int           // by GPU: a number that equal ones share; nil until a state failed
	demands []int           // by demand: the same
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
	p.staying = make([]total, len(p.node.GPUs))
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
	if p.hasFailed(k) {
		return false
	}
	i := p.order[k]
	count := p.wish.Demands[i].count()
	for _, group := range p.groups(i) {
		for set := first(count, len(group)); set != nil; set = next(set, len(group)) {
			p.choose(i, group, set)
			if p.place(k + 1) {
				return true
			}
			p.undo(i)
			if p.left == p.stop {
				return false
			}
			p.left--
		}
	}
	p.fails(k)
	return false
}

// choose puts a demand on a set of a group's GPUs.
func (p *plan) choose(i int, group, set []int) {
	p.chosen[i] = make([]int, len(set))
	for j, at := range set {
		p.chosen[i][j] = group[at]
		p.on[group[at]] = append(p.on[group[at]], i)
	}
	p.stays(i, 1)
}

// undo takes a demand off its GPUs.
func (p *plan) undo(i int) {
	p.stays(i, -1)
	for _, g := range p.chosen[i] {
		p.on[g] = p.on[g][:len(p.on[g])-1]
	}
	p.chosen[i] = nil
}

// stays counts a demand on its GPUs, or takes it off (times -1), if it does not end first.
func (p *plan) stays(i, times int) {
	d := &p.wish.Demands[i]
	for _, g := range p.chosen[i] {
		if !d.Init {
			p.staying[g].add(d, &p.node.GPUs[g], p.node.modeOf(d), times)
		}
	}
}

// servingAlone returns the GPUs that serve a demand, if its pod has nothing else on them.
func (p *plan) servingAlone(d *Demand) (gpus []int) {
	mode := p.node.modeOf(d)
	for g := range p.node.GPUs {
		if p.misfitOf(d, mode, &p.node.GPUs[g]) == fits {
			gpus = append(gpus, g)
		}
	}
	return gpus
}

// groups returns the GPUs that serve a demand beside what the pod already has, the best first. A
// grant has the same amount on each of its GPUs, so each group has one amount.
func (p *plan) groups(i int) [][]int {
	d := &p.wish.Demands[i]
	mode := p.node.modeOf(d)
	var fitting []int
	for _, g := range p.serving[i] {
		if p.beside(i, g, mode) {
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

// beside reports whether a GPU serves a demand beside the other demands of the pod on it. They are
// of one mode. Those that stay are placed first, and their sum is known.
func (p *plan) beside(i, g int, mode grant.Mode) bool {
	if !p.has(g) {
		return true
	}
	demands, gpu := p.wish.Demands, &p.node.GPUs[g]
	d, other := &demands[i], &demands[p.on[g][0]]
	if p.node.modeOf(other) != mode || mode == grant.MPS && (d.count() > 1 || other.count() > 1) {
		return false
	}
	beside := p.staying[g]
	if d.Init { // those that start before it
		beside = total{}
		for _, j := range p.on[g] {
			if !demands[j].Init && j < i {
				beside.add(&demands[j], gpu, mode, 1)
			}
		}
	}
	if mode == grant.Exclusive {
		return beside.demands == 0
	}
	return beside.memory+d.amount(gpu, mode) <= gpu.Free && beside.compute+d.Compute <= gpu.Compute
}

// total is what some demands have of a GPU together.
type total struct {
	demands int
	memory  grant.Bytes
	compute int
}

// add adds a demand, or takes it off (times -1: the amounts are unsigned and wrap around).
func (t *total) add(d *Demand, g *GPU, mode grant.Mode, times int) {
	t.demands += times
	t.memory += grant.Bytes(times) * d.amount(g, mode)
	t.compute += times * d.Compute
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
