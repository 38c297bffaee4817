package request

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// The gpushare dialect, as AliyunContainerService/gpushare-scheduler-extender and
// gpushare-device-plugin write it. Pod annotations name a card by index and a size in GiB or MiB,
// whichever the node's device plugin counts in.
const (
	shareIndex      = "ALIYUN_COM_GPU_MEM_IDX"
	sharePod        = "ALIYUN_COM_GPU_MEM_POD"
	shareContainer  = "ALIYUN_COM_GPU_MEM_CONTAINER" // env: this container's part
	shareCard       = "ALIYUN_COM_GPU_MEM_DEV"       // the card's total
	shareAllocation = "scheduler.framework.gpushare.allocation"
)

// gpuShare reads both forms. The JSON names containers itself.
func gpuShare(f *containerFacts) (all []grant.Allocation) {
	if text, is := f.spec.Annotations[shareAllocation]; is {
		if a, names := shareJSON(f, text); names {
			all = append(all, a)
		}
	}
	if index, is := f.spec.Annotations[shareIndex]; is && hasPart(f) {
		all = append(all, sharePart(f, index))
	}
	return all
}

// sharePart reads the pod-level annotations. They count for a container whose environment says that
// it has a part.
func sharePart(f *containerFacts, index string) grant.Allocation {
	a := grant.Allocation{Source: "annotation:" + shareIndex, Asks: true, GPUs: []string{index}}
	var err error
	if a.Units, err = positive(shareContainer, f.env[shareContainer]); err != nil {
		a.Malformed = err.Error()
	}
	if _, err := positive(shareIndex, index); err != nil && index != "0" {
		a.Malformed = err.Error()
	}
	if total, is := f.spec.Annotations[shareCard]; is {
		if a.Total, err = positive(shareCard, total); err != nil {
			a.Malformed = err.Error()
		}
	}
	return a
}

// hasPart reports whether the container's environment says that it has a part. A value that is no
// number is taken for one.
func hasPart(f *containerFacts) bool {
	return f.env[shareContainer] != "" && f.env[shareContainer] != "0"
}

// shareJSON reads {"container": {"card": GiB}}, and reports whether it names the container. A text
// that cannot be read names any. It is a fault only of a container that asks for a GPU, which in a
// pod its part of the memory shows; the refusal says so then. What is under another container's
// name is that container's.
func shareJSON(f *containerFacts, text string) (a grant.Allocation, names bool) {
	a.Source = "annotation:" + shareAllocation
	own, err := memberOf([]byte(text), f.caller.Container.Name())
	if err != nil {
		a.Malformed = unreadableShare
		a.Asks = hasPart(f) && f.caller.Container.Pod.Container != ""
		return a, true
	}
	if own == nil {
		return grant.Allocation{}, false
	}
	a.Asks = true
	cards, err := readCards(own)
	switch {
	case err != nil:
		a.Malformed = unreadableShare
		return a, true
	case len(cards) == 0:
		return grant.Allocation{}, false
	}
	a.GPUs = slices.Sorted(maps.Keys(cards))
	a.Units = cards[a.GPUs[0]]
	for card, units := range cards {
		if _, err := strconv.ParseUint(card, 10, 16); err != nil || units <= 0 || units > maxUnits ||
			units != a.Units {
			a.Malformed = "cannot read " + shareAllocation +
				": want cards by index, each with the same whole number of GiB"
		}
	}
	return a, true
}

// memberOf returns the value of an object's member; nil if there is none.
func memberOf(object []byte, name string) (value jsontext.Value, err error) {
	err = tokens.Whole(object, func(d *jsontext.Decoder) error {
		return tokens.Object(d, func(is []byte) error {
			if string(is) != name {
				return d.SkipValue()
			}
			text, err := d.ReadValue()
			value = text.Clone()
			return err
		})
	})
	return value, err
}

func readCards(object []byte) (cards map[string]int, err error) {
	err = tokens.Whole(object, func(d *jsontext.Decoder) error {
		return tokens.Map(d, &cards, tokens.Int[int])
	})
	return cards, err
}

const unreadableShare = "cannot read " + shareAllocation + `: want {"container": {"card": GiB}}`

// maxUnits keeps sums of GiB within 64 bits.
const maxUnits = 1 << 30

func positive(key, value string) (int, error) {
	n, _ := strconv.Atoi(value) // 0 if it is no number, and the largest if it is too large
	if n <= 0 || n > maxUnits {
		return 0, fmt.Errorf("cannot read %s %q: want a whole number above 0", key, value)
	}
	return n, nil
}
