package deviceplugin

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A unit of memory is a device to the kubelet, which knows no amounts. The device's id is a number
// and names no GPU: the ledger chooses the GPU at each Allocate.

// unitPrefix begins the id of each unit.
const unitPrefix = "unit-"

func unitID(n int) string { return unitPrefix + strconv.Itoa(n) }

// units parses the ids that the kubelet has chosen.
func units(ids []string) ([]int, error) {
	list := make([]int, len(ids))
	for i, id := range ids {
		n, err := strconv.Atoi(strings.TrimPrefix(id, unitPrefix))
		if err != nil || n < 0 || unitID(n) != id {
			return nil, fmt.Errorf("the kubelet asks for a device %q that was never offered", id)
		}
		list[i] = n
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// ranges formats numbers as ranges, such as 0-3,7.
func ranges(list []int) string {
	var text []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if i == j {
			text = append(text, strconv.Itoa(list[i]))
		} else {
			text = append(text, fmt.Sprintf("%d-%d", list[i], list[j]))
		}
		i = j + 1
	}
	return strings.Join(text, ",")
}

// maxUnits limits the size of a range in a label.
const maxUnits = 1 << 20

// numbers parses the output of ranges and skips what it cannot parse.
func numbers(text string) []int {
	var list []int
	for word := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(word, "-")
		first, err := strconv.Atoi(from)
		last := first
		if err == nil && isRange {
			last, err = strconv.Atoi(to)
		}
		if err != nil || first < 0 || last < first || last-first > maxUnits {
			continue
		}
		for n := first; n <= last; n++ {
			list = append(list, n)
		}
	}
	return list
}

// set returns the devices of a list. There can be 65536 of them, and a call of the kubelet may name
// each. So a list is not searched for each device of another one.
func set(ids []string) map[string]bool {
	all := make(map[string]bool, len(ids))
	for _, id := range ids {
		all[id] = true
	}
	return all
}

// overlap reports whether a list has one of the devices.
func overlap(list []string, devices map[string]bool) bool {
	return slices.ContainsFunc(list, func(id string) bool { return devices[id] })
}
