package request

import (
	"strconv"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// deviceRules finds what the device cgroup lets be opened. Creating a node ("m" alone) opens
// nothing.
func deviceRules(f *containerFacts) (found vectorResult) {
	if f.rules.unruled {
		return vectorResult{}
	}
	for _, o := range f.rules.open {
		found.hit(ruleHit(f, o))
	}
	return found
}

func ruleHit(f *containerFacts, o opening) grant.Hit {
	h := grant.Hit{Vector: "rule:" + strconv.Itoa(o.index), Value: o.device() + " " + o.access,
		Code: f.rules.codeFor(grant.GPUDeviceRule), Cover: grant.CoverNever}
	switch {
	case f.caller.CgroupsOff: // a rule of ours would not take effect either
		h.Vector, h.Value, h.Code = "rule:none", "the device cgroup is switched off", grant.RulesNotEnforced
	case o.index < 0 && len(f.spec.Linux.Resources.Devices) == 0:
		h.Vector, h.Value, h.Cover = "rule:none", "no device rule is given", grant.CoverNarrow
	case o.index < 0:
		h.Vector, h.Value = "rule:none", "the device rules do not begin by denying all"
		h.Cover = grant.CoverNarrow
	case o.kind == "a":
		h.Cover = grant.CoverNarrow
	case o.major != wildcard && o.minor != wildcard:
		class := f.devices.class(o.major, o.minor)
		if o.major == grant.MajorDRM { // of a GPU that the inventory has, and the kernel not yet
			class = grant.ClassDRM
		}
		if class != "" {
			h.Cover, h.Node = cover(class), grant.DeviceNode{Class: class, Minor: int(o.minor)}
		}
	}
	if o.major != wildcard && becomes(&f.devices, o) {
		h.Value += toCome
	}
	if h.Cover != grant.CoverNarrow && o.index >= 0 {
		h.Removal = grant.Removal{Kind: grant.RemoveRule, Name: o.device()}
	}
	return h
}

// toCome is part of the value of a rule for devices that are no GPU's yet.
const toCome = " (a number that NVIDIA's driver gets when it is loaded)"

// becomes reports whether a rule opens no GPU's device now.
func becomes(d *devices, o opening) bool {
	if o.major == grant.MajorDRM && o.minor == wildcard {
		return !d.anyDRM()
	}
	return d.class(o.major, max(o.minor, 0)) == ""
}
