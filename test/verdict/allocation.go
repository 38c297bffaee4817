package verdict

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Allocation is what a container's annotations or variables state about its share
// (docs/requesting.md, "What a container may say about its allocation").
type Allocation struct {
	Stated    bool
	GPUs      []string // names; nil: none named
	None      bool     // that number is 0
	Named     bool     // by `gpu`
	Many      int      // a single number in `gpus`, which is how many for a container that asks (ADR 93)
	Memory    int64    // over all GPUs; -1: not stated
	Compute   int      // -1: not stated
	Mode      string
	Malformed bool
	Share     bool // of gpushare: Pod is what its pod has together, -1 if that is not stated
	Pod       int64
}

func nothing() Allocation { return Allocation{Memory: -1, Compute: -1, Pod: -1} }

var allocationKeys = []string{"gpus", "gpu", "memory", "compute", "mode"}

// allocations of a container: own are those that name it, shared those of its pod as a whole, and
// variables those of its environment.
func allocations(in Input, p Policy, spec specs.Spec, id Identity) (own, shared, variables,
	share Allocation) {
	own, shared, variables, share = nothing(), nothing(), nothing(), nothing()
	if id.Sandbox {
		return own, shared, variables, share
	}
	if slices.Contains(p.Dialects, "gpuledger") {
		for _, key := range allocationKeys {
			whole, hasWhole := spec.Annotations["gpuledger.dev/"+key]
			if id.Container == "" {
				own.state(key, whole, hasWhole)
				continue
			}
			shared.state(key, whole, hasWhole)
			text, has := spec.Annotations["gpuledger.dev/"+key+"."+id.Container]
			own.state(key, text, has)
		}
	}
	for _, key := range allocationKeys {
		text, _ := variable(spec, "GPULEDGER_"+strings.ToUpper(key))
		variables.state(key, text, text != "")
	}
	if slices.Contains(p.Dialects, "gpushare") && id.Proven {
		share = gpushare(in, spec, id)
	}
	return own, shared, variables, share
}

func (a *Allocation) state(key, text string, has bool) {
	if !has {
		return
	}
	a.Stated = true
	var err error
	switch key {
	case "gpus", "gpu":
		for name := range strings.SplitSeq(text, ",") {
			a.GPUs = append(a.GPUs, strings.TrimSpace(name))
			a.Malformed = a.Malformed || strings.TrimSpace(name) == ""
		}
		a.Named = a.Named || key == "gpu"
		if n, err := strconv.Atoi(text); key == "gpus" && err == nil {
			a.Many, a.None = n, n < 1
		}
	case "memory":
		if a.Memory, err = ParseSize(text); err != nil || a.Memory == 0 {
			a.Malformed, a.Memory = true, -1
		}
	case "compute":
		if a.Compute, err = strconv.Atoi(text); err != nil || a.Compute < 1 || a.Compute > 100 {
			a.Malformed, a.Compute = true, -1
		}
	case "mode":
		if a.Mode = text; !slices.Contains(modes, text) {
			a.Malformed, a.Mode = true, ""
		}
	}
}

// gpushare reads the annotations of that scheduler. Its statements are about a container whose
// environment has a part, or that its JSON names (the contract, "Settled details").
func gpushare(in Input, spec specs.Spec, id Identity) Allocation {
	a := nothing()
	text, has := spec.Annotations["scheduler.framework.gpushare.allocation"]
	if has {
		var all map[string]map[string]int64
		if json.Unmarshal([]byte(text), &all) == nil {
			for card, units := range all[id.Container] {
				a.Stated, a.Share = true, true
				a.GPUs, a.Memory = append(a.GPUs, card), max(a.Memory, 0)+units<<30
				a.Pod = a.Memory // it has the size itself, and not in the environment
			}
		}
	}
	part, _ := variable(spec, "ALIYUN_COM_GPU_MEM_CONTAINER")
	units, err := strconv.ParseInt(part, 10, 64)
	if err != nil || units <= 0 {
		return a
	}
	index, hasIndex := spec.Annotations["ALIYUN_COM_GPU_MEM_IDX"]
	if !hasIndex {
		return a
	}
	a.Stated, a.Share = true, true
	card, err := strconv.Atoi(index)
	size, _ := strconv.ParseInt(spec.Annotations["ALIYUN_COM_GPU_MEM_DEV"], 10, 64)
	if err != nil || card < 0 || size <= 0 { // -1: it could not be placed
		a.Malformed = true
		return a
	}
	unit := int64(1 << 30)
	if size > 1024 { // the card's size says in which unit all of these are
		unit = 1 << 20
	}
	a.GPUs, a.Memory = []string{index}, units*unit
	if pod, err := strconv.ParseInt(spec.Annotations["ALIYUN_COM_GPU_MEM_POD"], 10, 64); err == nil {
		a.Pod = pod * unit
	}
	return a
}

// agrees says whether the statements are true of a grant.
func (a Allocation) agrees(n Node, g Grant) bool {
	if !a.Stated {
		return true
	}
	if a.GPUs != nil {
		var want, has []string
		for _, name := range a.GPUs {
			uuid, ok := n.resolve(name)
			if !ok {
				return false
			}
			want = append(want, uuid)
		}
		for _, s := range g.Shares {
			has = append(has, s.UUID)
		}
		slices.Sort(want)
		slices.Sort(has)
		if !slices.Equal(slices.Compact(want), has) {
			return false
		}
	}
	total := int64(0)
	for _, s := range g.Shares {
		total += s.Memory
	}
	return (a.Memory < 0 || a.Memory == total || g.Mode == "mig" && a.Memory <= total) &&
		(a.Compute < 0 || a.Compute == g.Compute) && (a.Mode == "" || a.Mode == g.Mode)
}
