package request

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// The gpushare dialect, as AliyunContainerService/gpushare-scheduler-extender and gpushare-device-plugin write it. Pod
// annotations name a card by index and a size in GiB or MiB, whichever the node's device plugin counts in.
const (
	shareIndex      = "ALIYUN_COM_GPU_MEM_IDX"
	sharePod        = "ALIYUN_COM_GPU_MEM_POD"
	shareContainer  = "ALIYUN_COM_GPU_MEM_CONTAINER" // env: this container's part
	shareCard       = "ALIYUN_COM_GPU_MEM_DEV"       // the card's total
	shareAllocation = "scheduler.framework.gpushare.allocation"
)

// gpuShare reads both forms. The pod-level annotations count for a container whose env says that it has a part; the JSON
// names containers itself.
func (f *finder) gpuShare() {
	if text, found := f.spec.Annotations[shareAllocation]; found {
		f.shareJSON(text)
	}
	index, found := f.spec.Annotations[shareIndex]
	part := f.env[shareContainer]
	if !found || !f.hasPart() {
		return
	}
	a := grant.Allocation{Source: "annotation:" + shareIndex, Asks: true, GPUs: []string{index}}
	var err error
	if a.Units, err = positive(shareContainer, part); err != nil {
		a.Malformed = err.Error()
	}
	if _, err := positive(shareIndex, index); err != nil && index != "0" {
		a.Malformed = err.Error()
	}
	if total, found := f.spec.Annotations[shareCard]; found {
		if a.Total, err = positive(shareCard, total); err != nil {
			a.Malformed = err.Error()
		}
	}
	f.request.Allocations = append(f.request.Allocations, a)
}

// hasPart reports whether the container's environment says that it has a part. What is no number is taken for one.
func (f *finder) hasPart() bool { return f.env[shareContainer] != "" && f.env[shareContainer] != "0" }

// shareJSON reads {"container": {"card": GiB}}. A text that cannot be read names nobody: it is a fault only of a container
// that asks for a GPU, which in a pod its part of the memory says, and it is told so then. What stands under another
// container's name is that container's.
func (f *finder) shareJSON(text string) {
	a := grant.Allocation{Source: "annotation:" + shareAllocation}
	var containers map[string]jsontext.Value
	if err := json.Unmarshal([]byte(text), &containers); err != nil {
		a.Malformed = unreadableShare
		a.Asks = f.hasPart() && f.request.Container.Pod.Container != ""
		f.request.Allocations = append(f.request.Allocations, a)
		return
	}
	own, named := containers[f.request.Container.Name()]
	if !named {
		return
	}
	a.Asks = true
	var cards map[string]int
	switch err := json.Unmarshal(own, &cards); {
	case err != nil:
		a.Malformed = unreadableShare
		f.request.Allocations = append(f.request.Allocations, a)
		return
	case len(cards) == 0:
		return
	}
	a.GPUs = slices.Sorted(maps.Keys(cards))
	a.Units = cards[a.GPUs[0]]
	for card, units := range cards {
		if _, err := strconv.ParseUint(card, 10, 16); err != nil || units <= 0 || units > maxUnits || units != a.Units {
			a.Malformed = fmt.Sprintf("cannot read %s: want cards by index, each with the same whole number of GiB", shareAllocation)
		}
	}
	f.request.Allocations = append(f.request.Allocations, a)
}

const unreadableShare = "cannot read " + shareAllocation + `: want {"container": {"card": GiB}}`

// maxUnits keeps sums of GiB within 64 bits.
const maxUnits = 1 << 30

func positive(key, value string) (int, error) {
	n, _ := strconv.Atoi(value) // what is no number is 0, and what is too large the largest
	if n <= 0 || n > maxUnits {
		return 0, fmt.Errorf("cannot read %s %q: want a whole number above 0", key, value)
	}
	return n, nil
}
