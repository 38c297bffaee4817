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

// place finds the GPUs of an allocation that is adopted or asked for, as `gpuledger grant` does
// (docs/grants.md, docs/asking.md). percent is `ask.total`, of all grants that were asked for.
func place(in Input, p Policy, a Allocation, asks bool) placed {
	mode := a.Mode
	if mode == "" {
		mode = "limit"
		if asks {
			mode = p.AskMode
		}
	}
	slices.Sort(a.GPUs)
	a.GPUs = slices.Compact(a.GPUs) // `gpu` and `gpus` may name the same
	many := max(len(a.GPUs), 1)
	if asks && a.Many > 0 && a.Named {
		return placed{unclear: "a number of GPUs, and GPUs by name"}
	}
	if asks && a.Many > 0 {
		many, a.GPUs = a.Many, nil
	}
	compute := max(a.Compute, 0)
	var codes []Code
	if mode == "mig" {
		return placed{unclear: "an allocation of a MIG device"}
	}
	if mode == "exclusive" && (a.Memory >= 0 || compute > 0) {
		return placed{unclear: "an exclusive allocation with memory or compute"}
	}
	if asks && (!slices.Contains(p.AskModes, mode) || many > p.AskGPUs) {
		return placed{codes: []Code{AskNotAllowed}}
	}
	named := map[string]bool{}
	for _, name := range a.GPUs {
		uuid, ok := in.Node.resolve(name)
		if _, mig := in.Node.mig(uuid); mig || !ok {
			return placed{unclear: "an allocation of a GPU that is not there, or of a MIG device"}
		}
		named[uuid] = true
	}
	if mode != "exclusive" && a.Memory < 0 && unenforceable(p, nil, mode, compute) {
		return placed{unclear: "no size, and a share that cannot be enforced"}
	}
	if mode != "exclusive" && a.Memory < 0 {
		// docs/asking.md: a size that cannot be read, or none
		return placed{codes: []Code{AnnotationMalformed}}
	}
	each := a.Memory / int64(many)
	if mode != "exclusive" && a.Memory%(int64(many)<<20) != 0 {
		return placed{unclear: "a size that the GPUs do not divide"}
	}
	if asks && (!slices.Contains(p.AskModes, mode) || many > p.AskGPUs || p.AskMemory > 0 &&
		mode != "exclusive" && a.Memory > p.AskMemory) {
		codes = append(codes, AskNotAllowed)
	}
	if asks && mode == "exclusive" && p.AskMemory > 0 {
		return placed{unclear: "an exclusive GPU where max_memory is set"}
	}
	if mode == "limit" && computeRefused(p, compute) { // before a place is looked for
		codes = append(codes, LimitUnenforceable)
	}
	if len(codes) > 0 {
		return placed{codes: codes}
	}
	var fits []seat
	var reasons []Code
	for _, gpu := range in.Node.GPUs {
		if len(named) > 0 && !named[gpu.UUID] {
			continue
		}
		s, why := sit(in, p, gpu, mode, each, compute, asks)
		if why == "" {
			fits = append(fits, s)
			continue
		}
		reasons = append(reasons, why)
	}
	if len(fits) < many {
		if len(named) == 0 && len(reasons) > 1 {
			slices.SortFunc(reasons, func(a, b Code) int {
				return slices.Index(Order, a) - slices.Index(Order,
					b)
			})
			if reasons = slices.Compact(reasons); len(reasons) > 1 || len(p.Pools) > 0 {
				return placed{codes: reasons, unclear: "no GPU has room, for several reasons"}
			}
		}
		return placed{codes: reasons}
	}
	if mode == "mps" {
		return placed{codes: append(codes, MPSNotReady)}
	}
	if unenforceable(p, nil, mode, compute) {
		codes = append(codes, LimitUnenforceable)
	}
	if len(codes) > 0 {
		return placed{codes: codes}
	}
	var gpus []string
	for _, s := range fits {
		gpus = append(gpus, s.uuid)
	}
	if len(fits) > many {
		// binpack: the fullest
		slices.SortStableFunc(fits, func(a, b seat) int { return int((a.free - b.free) >> 20) })
		if fits[many-1].free == fits[many].free || len(p.Pools) > 0 {
			return placed{}
		}
		gpus = nil
		for _, s := range fits[:many] {
			gpus = append(gpus, s.uuid)
		}
	}
	slices.Sort(gpus)
	return placed{gpus: gpus}
}

type seat struct {
	uuid string
	free int64
}

// sit says whether a GPU has room, and why not.
func sit(in Input, p Policy, gpu GPU, mode string, memory int64, compute int, asks bool) (seat, Code) {
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
	if named, serves := p.pool(gpu, mode); !named {
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
			if g.Mode != mode || mode == "exclusive" || mode == "mps" && len(g.Shares) > 1 {
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
	case mode != "exclusive" && memory > free, shares+compute > 100:
		return seat{}, NoCapacity
	case asks && (asked+memory > (gpu.Memory-p.Reserve)*int64(p.AskTotal)/100 ||
		sharesAsked+compute > p.AskTotal):
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
