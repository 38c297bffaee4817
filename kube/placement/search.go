package placement

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// The most dead ends of a pod of several containers: how often GPUs that were chosen for some of
// them are given up again, on one node and in a whole Search. The best GPUs by the policy come
// first, so there are dead ends only if containers obstruct each other. Without a limit for all
// nodes, one such pod took a second of a filter of 200 nodes.
const (
	deadEnds      = 1000
	deadEndsInAll = 10 * deadEnds
)

// Search places one wish on any number of nodes, one after the other.
type Search struct {
	wish  *Wish
	left  int             // how many more dead ends there may be
	known map[string]bool // whether the wish takes a product
}

// NewSearch returns a search for a wish.
func NewSearch(w *Wish) *Search {
	return &Search{wish: w, left: deadEndsInAll, known: map[string]bool{}}
}

// takes reports whether a GPU's product is one that the pod can use.
func (s *Search) takes(product string) bool {
	if len(s.wish.Products) == 0 {
		return true
	}
	takes, known := s.known[product]
	if !known {
		lower := strings.ToLower(product)
		takes = slices.ContainsFunc(s.wish.Products, func(name string) bool {
			return strings.Contains(lower, strings.ToLower(name))
		})
		s.known[product] = takes
	}
	return takes
}

// exceeds reports whether the demands need more at a time than the GPUs that serve them have
// together: memory, compute, or GPUs with nothing else on them. Then no choice has to be tried.
func (p *plan) exceeds() bool {
	var loads, whole []Load
	usable, empty := map[int]bool{}, map[int]bool{} // GPUs that serve any demand, and one for a whole GPU
	for i := range p.wish.Demands {
		d := &p.wish.Demands[i]
		l := Load{Init: d.Init, Memory: p.least(i) * grant.Bytes(d.count())}
		if p.node.modeOf(d) != grant.Exclusive {
			l.Compute = d.Compute * d.count()
		}
		loads = append(loads, l)
		if d.all() {
			whole = append(whole, Load{Init: d.Init, Compute: d.count()})
		}
		for _, g := range p.serving[i] {
			usable[g] = true
			if d.all() {
				empty[g] = true
			}
		}
	}
	var free grant.Bytes
	percent := 0
	for g := range usable {
		free += p.node.GPUs[g].Free
		percent += p.node.GPUs[g].Compute
	}
	memory, compute := Peak(loads)
	_, gpus := Peak(whole)
	return memory > free || compute > percent || gpus > len(empty)
}

// least returns the least memory that a demand takes of a GPU that serves it.
func (p *plan) least(i int) grant.Bytes {
	d := &p.wish.Demands[i]
	mode := p.node.modeOf(d)
	var least grant.Bytes
	for k, g := range p.serving[i] {
		gpu := &p.node.GPUs[g]
		amount := d.amount(gpu, mode)
		if mode == grant.Exclusive {
			amount = gpu.Free
		}
		if k == 0 || amount < least {
			least = amount
		}
	}
	return least
}

// fails notes that the demands from the k-th on have no place beside those before.
func (p *plan) fails(k int) {
	if p.failed == nil {
		p.failed, p.gpus, p.demands = map[string]bool{}, p.equalGPUs(), p.equalDemands()
	}
	p.failed[p.state(k)] = true
}

// hasFailed reports whether the demands from the k-th on had no place beside equal demands on equal
// GPUs. So of choices that differ only in which of several equal GPUs or demands they are about,
// one is tried.
func (p *plan) hasFailed(k int) bool { return len(p.failed) > 0 && p.failed[p.state(k)] }

// state returns what the GPUs have when the k-th demand is to be placed, the same for equal ones.
func (p *plan) state(k int) string {
	gpus := make([][]int, len(p.on))
	for g, on := range p.on {
		gpus[g] = make([]int, 0, 1+len(on))
		for _, i := range on {
			gpus[g] = append(gpus[g], p.demands[i])
		}
		slices.Sort(gpus[g])
		gpus[g] = append(gpus[g], -p.gpus[g]-1)
	}
	slices.SortFunc(gpus, slices.Compare)
	text := strconv.AppendInt(nil, int64(k), 10)
	for _, numbers := range gpus {
		for _, n := range numbers {
			text = strconv.AppendInt(append(text, ' '), int64(n), 10)
		}
	}
	return string(text)
}

// equalGPUs numbers the node's GPUs. Those that are equal to each demand have the same number.
func (p *plan) equalGPUs() []int {
	serves := make([][]byte, len(p.node.GPUs)) // a byte for each demand
	for i, serving := range p.serving {
		for _, g := range serving {
			serves[g] = append(append(serves[g], make([]byte, i-len(serves[g]))...), 1)
		}
	}
	type numbers struct {
		free, space grant.Bytes
		compute     int
		serves      string
	}
	list := make([]numbers, len(p.node.GPUs))
	for g := range p.node.GPUs {
		gpu := &p.node.GPUs[g]
		list[g] = numbers{gpu.Free, gpu.space(), gpu.Compute, string(serves[g])}
	}
	return numbered(list)
}

// equalDemands numbers the demands. Equal ones have the same number, if all that start between them
// end first, or none does. Otherwise something runs beside one of them and not beside the other.
func (p *plan) equalDemands() []int {
	type at struct {
		Demand
		run int
	}
	list, run := make([]at, len(p.wish.Demands)), 0
	for i, d := range p.wish.Demands {
		if i > 0 && d.Init != list[i-1].Init {
			run++
		}
		d.Container, d.GPUs = "", d.count()
		list[i] = at{d, run}
	}
	return numbered(list)
}

// numbered returns a number for each value, the same for equal values.
func numbered[T comparable](values []T) []int {
	numbers, known := make([]int, len(values)), map[T]int{}
	for i, v := range values {
		n, found := known[v]
		if !found {
			n = len(known)
			known[v] = n
		}
		numbers[i] = n
	}
	return numbers
}
