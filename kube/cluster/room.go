package cluster

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuledger/gpuledger/kube"
)

// wantedShare is what a request asks for.
type wantedShare struct {
	mode   string
	memory int64 // on each GPU, in bytes; 0: all of it
	count  int
}

// wantOf reads a request that names one of gpuledger's classes. It ignores other selectors, which
// only the scheduler evaluates.
func wantOf(r resourceapi.DeviceRequest) (w wantedShare, ok bool) {
	if r.Exactly == nil || r.Exactly.AllocationMode == resourceapi.DeviceAllocationModeAll {
		return w, false
	}
	mode, ok := strings.CutSuffix(r.Exactly.DeviceClassName, "."+kube.DriverName)
	w = wantedShare{mode: mode, count: max(1, int(r.Exactly.Count))}
	if r.Exactly.Capacity != nil {
		amount := r.Exactly.Capacity.Requests["memory"]
		w.memory = amount.Value()
	}
	return w, ok
}

func (w wantedShare) String() string {
	what := fmt.Sprintf("%s GiB", gib(w.memory))
	if w.memory == 0 {
		what = "all the memory"
	}
	if w.mode == sharing {
		if w.count == 1 {
			return what + " of a GPU in shares"
		}
		return fmt.Sprintf("%s of each of %d GPUs in shares", what, w.count)
	}
	if w.count == 1 {
		return fmt.Sprintf("%s of a GPU in mode %s", what, w.mode)
	}
	return fmt.Sprintf("%s of each of %d GPUs in mode %s", what, w.count, w.mode)
}

// sharing is the class of shares in whichever mode the GPU has.
const sharing = "shared"

// inMode returns the mode that a claim of a class would have on a GPU.
func (g GPU) inMode(class string) string {
	if class != sharing {
		return class
	}
	for _, mode := range []string{g.Mode, "limit", "timeslice", "mps"} {
		if mode != exclusive && slices.Contains(g.offered, mode) {
			return mode
		}
	}
	return class
}

// room returns the free bytes of a GPU in a mode, and whether the GPU offers that mode.
func (g GPU) room(mode string) (free int64, offered bool) {
	mode = g.inMode(mode)
	capacity, offered := g.modes[mode]
	if g.Mode != "" && (g.Mode != mode || mode == exclusive || mode == "mig") {
		return 0, offered
	}
	return max(0, capacity-g.Allocated), offered
}

// missing says why no node has what a request wants. "" means that a node has it, or that the API
// alone does not show why.
func (w wantedShare) missing(nodes []Node) string {
	var most int64
	best, somewhere, offers := 0, false, false
	for _, n := range nodes {
		fitting := 0
		for _, g := range n.GPUs {
			free, offered := g.room(w.mode)
			somewhere, offers = somewhere || offered, offers || slices.Contains(g.offered, g.inMode(w.mode))
			most = max(most, free)
			if offered && free > 0 && (free >= w.memory && w.memory > 0 ||
				w.memory == 0 && g.Allocated == 0) {
				fitting++
			}
		}
		best = max(best, fitting)
	}
	switch {
	case best >= w.count:
		return ""
	case !offers:
		return fmt.Sprintf("it wants %s, and no node offers that mode; an administrator lists the modes of "+
			"GPUs in the pools of a node's configuration", w)
	case !somewhere:
		return fmt.Sprintf("it wants %s, and no GPU takes new claims in that mode", w)
	case most == 0:
		return fmt.Sprintf("it wants %s, and none has anything free in that mode", w)
	case best > 0:
		return fmt.Sprintf("it wants %s, and no node has more than %d of them free", w, best)
	}
	return fmt.Sprintf("it wants %s, and no GPU has more than %s GiB free in that mode", w, gib(most))
}
