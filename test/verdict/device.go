package verdict

import (
	"slices"
	"strconv"
	"strings"
)

// Part is what a device, a mount or a rule gives: a GPU, or something that all grants have, or
// what only some have or none.
type Part struct {
	kind string // gpu, control, caps, render, modeset, foreign (NVIDIA's, in no grant)
	uuid string // of a gpu or render
	cap  int64  // of caps
}

// part says what a character device is; ok is false if it is no device of NVIDIA's driver.
func (n Node) part(d Number) (p Part, ok bool) {
	switch {
	case d.Major == 195 && d.Minor == 255:
		return Part{kind: "control"}, true
	case d.Major == 195 && d.Minor == 254:
		return Part{kind: "modeset"}, true
	case d.Major == 195:
		for _, g := range n.GPUs {
			if g.Minor == d.Minor {
				return Part{kind: "gpu", uuid: g.UUID}, true
			}
		}
		return Part{kind: "foreign"}, true
	case d.Major == 226:
		for _, g := range n.GPUs {
			if slices.Contains(g.Render, d.Minor) {
				return Part{kind: "render", uuid: g.UUID}, true
			}
		}
		return Part{}, false
	}
	for name, major := range n.Majors {
		switch {
		case major != d.Major:
		case name == "nvidia-uvm" && d.Minor <= 1:
			return Part{kind: "control"}, true
		case name == "nvidia-caps":
			return Part{kind: "caps", cap: d.Minor}, true
		default:
			return Part{kind: "foreign"}, true
		}
	}
	return Part{}, false
}

// toCome says whether NVIDIA's driver could still get the number (ADR 65).
func (n Node) toCome(major int64) bool {
	dynamic := major >= 234 && major <= 254 || major >= 384 && major <= 511
	return dynamic && !n.Taken[major]
}

// gpuOf is the UUID of the physical GPU of a GPU or MIG device.
func (n Node) gpuOf(uuid string) (GPU, bool) {
	for _, g := range n.GPUs {
		if g.UUID == uuid || slices.ContainsFunc(g.MIG, func(m MIG) bool { return m.UUID == uuid }) {
			return g, true
		}
	}
	return GPU{}, false
}

func (n Node) mig(uuid string) (MIG, bool) {
	for _, g := range n.GPUs {
		for _, m := range g.MIG {
			if m.UUID == uuid {
				return m, true
			}
		}
	}
	return MIG{}, false
}

// resolve is the UUID of a GPU or MIG device by index, `0:1` or UUID.
func (n Node) resolve(name string) (uuid string, ok bool) {
	for _, g := range n.GPUs {
		if name == g.UUID || name == strconv.Itoa(g.Index) {
			return g.UUID, true
		}
		for i, m := range g.MIG {
			if name == m.UUID || name == strconv.Itoa(g.Index)+":"+strconv.Itoa(i) {
				return m.UUID, true
			}
		}
	}
	return "", false
}

// covers says whether a grant gives the part (the contract, ADR 30 and 31).
func (n Node) covers(g Grant, p Part, c capabilities) (covered bool, unclear string) {
	has := func(uuid string) bool {
		return slices.ContainsFunc(g.Shares, func(s Share) bool {
			card, _ := n.gpuOf(s.UUID)
			return s.UUID == uuid || card.UUID == uuid // the card's node comes with each of its MIG devices
		})
	}
	switch p.kind {
	case "control":
		return true, ""
	case "gpu":
		return has(p.uuid), ""
	case "render":
		if !has(p.uuid) || g.Mode == "mig" { // of MIG devices those with a +gfx profile; there is none here
			return false, ""
		}
		if !c.graphics() {
			return true, "a render node of a granted GPU without graphics or display"
		}
		return true, ""
	case "modeset": // removed, or kept with an exclusive grant
		return true, ""
	case "caps":
		return slices.ContainsFunc(g.Shares, func(s Share) bool {
			m, ok := n.mig(s.UUID)
			return ok && slices.Contains(m.Caps[:], p.cap)
		}), ""
	}
	return false, ""
}

// capabilities is NVIDIA_DRIVER_CAPABILITIES.
type capabilities string

func (c capabilities) graphics() bool {
	for word := range strings.SplitSeq(string(c), ",") {
		if word == "graphics" || word == "display" || word == "all" {
			return true
		}
	}
	return false
}
