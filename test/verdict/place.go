package verdict

import (
	"slices"
	"strconv"
	"strings"
)

// placed is where an allocation would be entered, or why it cannot be.
type placed struct {
	gpus    []string // nil: more than one place is as good
	codes   []Code
	unclear string
}

// wish is what an allocation that is adopted or asked for wants of the node.
type wish struct {
	asks    bool
	mode    string
	many    int             // GPUs
	named   map[string]bool // their UUIDs; empty: any of them will do
	memory  int64           // of each GPU; not of an exclusive one
	compute int
}

// place finds the GPUs of an allocation that is adopted or asked for, as `gpuledger grant` does
// (docs/grants.md, docs/asking.md).
func place(in Input, p Policy, a Allocation, asks bool) placed {
	w, refused := readAllocation(in.Node, p, a, asks)
	if refused != nil {
		return *refused
	}
	seats, reasons := seatsFor(in, p, w)
	switch {
	case len(seats) < w.many:
		return noSeats(p, w, reasons)
	case w.mode == "mps":
		return placed{codes: []Code{MPSNotReady}}
	case unenforceable(p, nil, w.mode, w.compute):
		return placed{codes: []Code{LimitUnenforceable}}
	}
	return choosePlaces(seats, w.many, p)
}

// readAllocation says what an allocation wants, or why it is refused wherever there is room.
func readAllocation(node Node, p Policy, a Allocation, asks bool) (wish, *placed) {
	w := wish{asks: asks, mode: a.Mode, named: map[string]bool{}, compute: max(a.Compute, 0)}
	if w.mode == "" {
		w.mode = "limit"
		if asks {
			w.mode = p.AskMode
		}
	}
	names := slices.Sorted(slices.Values(a.GPUs))
	names = slices.Compact(names) // `gpu` and `gpus` may name the same
	w.many = max(len(names), 1)
	if asks && a.Many > 0 {
		w.many, names = a.Many, nil
	}
	exclusive := w.mode == "exclusive"
	switch {
	case asks && a.Many > 0 && a.Named:
		return w, &placed{unclear: "a number of GPUs, and GPUs by name"}
	case w.mode == "mig":
		return w, &placed{unclear: "an allocation of a MIG device"}
	case exclusive && (a.Memory >= 0 || w.compute > 0):
		return w, &placed{unclear: "an exclusive allocation with memory or compute"}
	case asks && (!slices.Contains(p.AskModes, w.mode) || w.many > p.AskGPUs):
		return w, &placed{codes: []Code{AskNotAllowed}}
	}
	for _, name := range names {
		uuid, ok := node.resolve(name)
		if _, mig := node.mig(uuid); mig || !ok {
			return w, &placed{unclear: "an allocation of a GPU that is not there, or of a MIG device"}
		}
		w.named[uuid] = true
	}
	if !exclusive {
		w.memory = a.Memory / int64(w.many)
	}
	return w, refusedSize(p, a, w)
}

// refusedSize says why an allocation's memory or compute is refused; nil: it is not.
func refusedSize(p Policy, a Allocation, w wish) *placed {
	exclusive, bounded := w.mode == "exclusive", w.asks && p.AskMemory > 0
	switch {
	case exclusive && bounded:
		return &placed{unclear: "an exclusive GPU where max_memory is set"}
	case exclusive:
		return nil
	case a.Memory < 0 && unenforceable(p, nil, w.mode, w.compute):
		return &placed{unclear: "no size, and a share that cannot be enforced"}
	case a.Memory < 0:
		// docs/asking.md: a size that cannot be read, or none
		return &placed{codes: []Code{AnnotationMalformed}}
	case a.Memory%(int64(w.many)<<20) != 0:
		return &placed{unclear: "a size that the GPUs do not divide"}
	}
	var codes []Code
	if bounded && a.Memory > p.AskMemory {
		codes = append(codes, AskNotAllowed)
	}
	if w.mode == "limit" && computeRefused(p, w.compute) { // before a place is looked for
		codes = append(codes, LimitUnenforceable)
	}
	if len(codes) == 0 {
		return nil
	}
	return &placed{codes: codes}
}

// seatsFor lists the GPUs that have room, and why others that may be used have none.
func seatsFor(in Input, p Policy, w wish) (seats []seat, reasons []Code) {
	for _, gpu := range in.Node.GPUs {
		if len(w.named) > 0 && !w.named[gpu.UUID] {
			continue
		}
		s, why := sit(in, p, gpu, w)
		if why == "" {
			seats = append(seats, s)
			continue
		}
		reasons = append(reasons, why)
	}
	return seats, reasons
}

// noSeats is the answer where too few GPUs have room.
func noSeats(p Policy, w wish, reasons []Code) placed {
	if len(w.named) > 0 || len(reasons) <= 1 {
		return placed{codes: reasons}
	}
	slices.SortFunc(reasons, func(a, b Code) int { return slices.Index(Order, a) - slices.Index(Order, b) })
	if reasons = slices.Compact(reasons); len(reasons) > 1 || len(p.Pools) > 0 {
		return placed{codes: reasons, unclear: "no GPU has room, for several reasons"}
	}
	return placed{codes: reasons}
}

// choosePlaces takes the fullest of the GPUs that have room (binpack).
func choosePlaces(seats []seat, many int, p Policy) placed {
	if len(seats) > many {
		slices.SortStableFunc(seats, func(a, b seat) int { return int((a.free - b.free) >> 20) })
		if seats[many-1].free == seats[many].free || len(p.Pools) > 0 {
			return placed{}
		}
	}
	var gpus []string
	for _, s := range seats[:many] {
		gpus = append(gpus, s.uuid)
	}
	slices.Sort(gpus)
	return placed{gpus: gpus}
}

type seat struct {
	uuid string
	free int64
}

// sit says whether a GPU has room, and why not.
func sit(in Input, p Policy, gpu GPU, w wish) (seat, Code) {
	if !gpu.Healthy { // nothing of it is free
		return seat{}, NoCapacity
	}
	if len(gpu.MIG) > 0 {
		for _, g := range in.Grants {
			for _, s := range g.Shares {
				if card, _ := in.Node.gpuOf(s.UUID); card.UUID == gpu.UUID && (!g.Expired || g.Bound) {
					return seat{}, ModeConflict
				}
			}
		}
		return seat{}, NoCapacity
	}
	if named, serves := p.pool(gpu, w.mode); !named {
		return seat{}, NoCapacity
	} else if !serves {
		return seat{}, ModeConflict
	}
	used, asked, shares, sharesAsked := int64(0), int64(0), 0, 0
	for _, g := range in.Grants {
		if g.Expired && !g.Bound {
			continue
		}
		for _, s := range g.Shares {
			if s.UUID != gpu.UUID {
				continue
			}
			// "or in mode exclusive, which it has for one grant alone"
			if g.Mode != w.mode || w.mode == "exclusive" || w.mode == "mps" && len(g.Shares) > 1 {
				return seat{}, ModeConflict
			}
			used, shares = used+s.Memory, shares+g.Compute
			if g.Asked {
				asked, sharesAsked = asked+s.Memory, sharesAsked+g.Compute
			}
		}
	}
	free := gpu.Memory - p.Reserve - used
	switch {
	case w.mode != "exclusive" && w.memory > free, shares+w.compute > 100:
		return seat{}, NoCapacity
	case w.asks && (asked+w.memory > (gpu.Memory-p.Reserve)*int64(p.AskTotal)/100 ||
		sharesAsked+w.compute > p.AskTotal):
		return seat{}, NoCapacity
	}
	return seat{gpu.UUID, free}, ""
}

// pool says whether the pools let a GPU serve a mode: "With pools, a GPU that no pool names takes
// no new grant."
func (p Policy) pool(gpu GPU, mode string) (named, serves bool) {
	if len(p.Pools) == 0 {
		return true, true
	}
	for _, pool := range p.Pools {
		for _, name := range pool.GPUs {
			first, last, isRange := strings.Cut(name, "-")
			low, err := strconv.Atoi(first)
			high := low
			if isRange {
				high, _ = strconv.Atoi(last)
			}
			if name == gpu.UUID || err == nil && gpu.Index >= low && gpu.Index <= high {
				return true, slices.Contains(pool.Modes, mode)
			}
		}
	}
	return false, false
}
