package admission

import (
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// checkHits checks every way to a GPU against the grant. It returns what is removed from the spec,
// and a finding for each hit that the grant does not cover.
func checkHits(q *question, u *grantUse) (removed removals, uncovered findings) {
	for _, h := range q.request.Hits {
		switch outcomeOf(q, u, h) {
		case isKept:
		case isRemoved:
			removed.add(h.Removal)
		default:
			uncovered.add(uncoveredCode(h), h.Vector, h.Value)
		}
	}
	return removed, uncovered
}

// outcome is what becomes of a hit of a container with a grant.
type outcome int

const (
	isRefused outcome = iota // the grant does not cover it
	isKept
	isRemoved
)

func outcomeOf(q *question, u *grantUse, h grant.Hit) outcome {
	switch {
	case h.Code == grant.PrivilegedGPU:
		return keptIf(isReplaced(q, h) || hasNode(u, h.Node), isRemoved)
	case isMPSMount(u, h):
		return isKept
	}
	switch h.Cover {
	case grant.CoverNarrow: // all of the spec's rules are replaced
		return isKept
	case grant.CoverGPUs:
		if hasAll(&q.inventory, u.grant, h.GPUs) {
			return isRemoved
		}
	case grant.CoverNode:
		return keptIf(hasNode(u, h.Node), isRefused)
	case grant.CoverDrop:
		return keptIf(hasNode(u, h.Node), isRemoved)
	case grant.CoverRecord: // that of another grant was left in the spec by an earlier create
		return keptIf(h.Grant == u.id, isRemoved)
	}
	return isRefused
}

func keptIf(kept bool, otherwise outcome) outcome {
	if kept {
		return isKept
	}
	return otherwise
}

// uncoveredCode returns the code of a hit that the grant does not cover. "all" is covered: the
// container gets the GPUs of its grant. So a list that is not covered names a GPU outside the
// grant.
func uncoveredCode(h grant.Hit) grant.Code {
	if h.Code == grant.VisibleDevicesAll {
		return grant.VisibleDevicesOutsideGrant
	}
	return h.Code
}

// isReplaced reports whether a hit is a device rule that is replaced together with all others,
// because one of them opens every device.
func isReplaced(q *question, h grant.Hit) bool {
	return h.Removal.Kind == grant.RemoveRule && q.request.AllDevices
}

// isMPSMount reports whether a hit is a mount that the grant brings. The spec has it if it was
// edited before, or if another entry point of gpuledger has added it.
func isMPSMount(u *grantUse, h grant.Hit) bool {
	return slices.ContainsFunc(u.mpsMounts, func(m *cdispec.Mount) bool {
		return h.Vector == "mount:"+m.ContainerPath && h.Value == m.HostPath
	})
}

// hasAll reports whether the grant has all GPUs of a list. "all" means those of the grant.
func hasAll(inv *grant.Inventory, g *grant.Grant, names []string) bool {
	for _, name := range names {
		d, _ := inv.Device(name)
		if name != allOf && !g.Has(d.UUID()) {
			return false
		}
	}
	return true
}

// hasNode reports whether a device node comes with the grant: the nodes of its GPUs and of its MIG
// devices, and the control and UVM nodes, which every client needs.
func hasNode(u *grantUse, n grant.DeviceNode) bool {
	switch n.Class {
	case grant.ClassControl:
		return true
	case grant.ClassUVM:
		return n.Minor == 0 || n.Minor == 1
	case grant.ClassModeset:
		return u.display
	}
	for i := range u.devices {
		if isNodeOf(&u.devices[i], n, u.grant.Mode == grant.Exclusive) {
			return true
		}
	}
	return false
}

// isNodeOf reports whether a node belongs to a device: it opens the device, or is a DRM node that
// renders on it. A card node drives its displays, too, and belongs to a whole GPU alone (ADR 31).
func isNodeOf(d *grant.Device, n grant.DeviceNode, whole bool) bool {
	switch n.Class {
	case grant.ClassGPU:
		return d.GPU.Minor == n.Minor
	case grant.ClassCaps:
		return n.Minor != 0 && d.MIG != nil && slices.Contains(d.MIG.Caps[:], n.Minor)
	case grant.ClassDRM:
		return hasGraphics(d) &&
			slices.ContainsFunc(d.GPU.Render, func(path string) bool {
				return drmMinor(path) == n.Minor && (whole || isRender(path))
			})
	}
	return false
}

// removals holds what is removed from a spec, without duplicates. A spec can have many, so they are
// looked up in a map.
type removals struct {
	list  []grant.Removal
	known map[grant.Removal]bool
}

// add adds a removal. It ignores an empty one.
func (r *removals) add(removal grant.Removal) {
	if removal == (grant.Removal{}) || r.known[removal] {
		return
	}
	if r.known == nil {
		r.known = map[grant.Removal]bool{}
	}
	r.known[removal] = true
	r.list = append(r.list, removal)
}
