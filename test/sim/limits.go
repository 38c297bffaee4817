package sim

import (
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/limits"
)

// checkLimits: a container that the shim limits has the record of its grant, and no record lets
// more be used than is granted.
func checkLimits(v grant.View, boxes []*box, p grant.Policy) string {
	kept := limits.Kept(p.LimitsRoot())
	for _, b := range boxes {
		if b.limited && !slices.Contains(kept, string(b.grant)) {
			return fmt.Sprintf("container %s runs without the record of grant %s", nameOf(b.name), b.grant)
		}
	}
	for _, g := range v.Grants {
		if !slices.Contains(kept, string(g.ID)) || !g.Live(v.Now) {
			continue
		}
		record, err := limits.Open(p.LimitsDir(g.ID))
		if err != nil { // it is being made
			continue
		}
		broken := compare(record, g, func(has, granted grant.Bytes) bool { return has <= granted })
		if broken != "" {
			return broken
		}
	}
	return ""
}

// compare says what of a record is not right beside its grant, and closes the record.
func compare(record *limits.Limits, g grant.Grant, right func(has, granted grant.Bytes) bool) string {
	defer record.Close()
	for _, s := range g.GPUs {
		if b, err := record.Bytes(s.UUID); err != nil || !right(b, s.Memory) {
			return fmt.Sprintf("the record of grant %s has %s of %s, which has %s (%v)", g.ID, b, s.UUID,
				s.Memory, err)
		}
	}
	return ""
}

// checkRecords: each record says what its grant has. alone: nothing has happened since a pass, so
// none is left of a grant that is over. Otherwise a container may have ended, which takes no lock.
func checkRecords(v grant.View, boxes []*box, p grant.Policy, alone bool) string {
	for _, name := range limits.Kept(p.LimitsRoot()) {
		i := slices.IndexFunc(v.Grants, func(g grant.Grant) bool { return string(g.ID) == name })
		if i < 0 || !v.Grants[i].Live(v.Now) {
			if alone {
				return fmt.Sprintf("the record of %s is left, which is over", name)
			}
			continue
		}
		g := v.Grants[i]
		record, err := limits.Open(p.LimitsDir(g.ID))
		if err != nil {
			if slices.ContainsFunc(boxes, func(b *box) bool { return b.limited && b.grant == g.ID }) {
				return fmt.Sprintf("the record of grant %s cannot be read: %v", g.ID, err)
			}
			continue
		}
		broken := compare(record, g, func(has, granted grant.Bytes) bool { return has == granted })
		if broken != "" {
			return broken
		}
	}
	return ""
}
