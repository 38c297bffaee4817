package request

import (
	"math"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// wildcard is a major or minor that means all.
const wildcard = -1

// number reads a major or minor of a rule as crun does on cgroup v2: as an int of C, of which every negative one means
// all, as every negative one means to runc. The other readers refuse what does not fit.
func number(n *int64) int64 {
	if n == nil || *n < 0 || int32(*n) < 0 {
		return wildcard
	}
	return int64(int32(*n))
}

// agreed reports whether all readers see the same numbers in a rule.
func agreed(r specs.LinuxDeviceCgroup) bool {
	fits := func(n *int64) bool { return n == nil || -1 <= *n && *n <= math.MaxInt32 }
	return fits(r.Major) && fits(r.Minor)
}

// denies reports whether a deny rule keeps a device from being read and written in every reading. A missing access denies
// nothing (crun on cgroup v2).
func denies(r specs.LinuxDeviceCgroup) bool {
	return !r.Allow && agreed(r) && strings.Contains(r.Access, "r") && strings.Contains(r.Access, "w")
}

// opening is a device rule that lets GPU nodes be opened.
type opening struct {
	index        int    // in linux.resources.devices; -1: no rule closed it
	kind         string // "a" or "c"
	major, minor int64
	access       string
	odd          bool // readers disagree on its numbers, so no deny is sure to name the same device
}

// deviceRules judges what the device cgroup lets be opened. Creating a node ("m" alone) opens nothing.
func (f *finder) deviceRules() {
	f.request.Unruled = f.unruled()
	f.open = f.openings()
	if f.request.Unruled {
		f.request.Privileged = f.request.SysAdmin && f.bringsNodes()
		return
	}
	f.request.AllDevices = slices.ContainsFunc(f.open, func(o opening) bool { return o.kind == "a" && o.index >= 0 })
	if f.request.AllDevices {
		f.classes() // what takes the place of its rules leaves them out
		f.request.Devices.Taken = f.taken()
	}
	f.request.Privileged = f.request.AllDevices || f.request.SysAdmin && f.bringsNodes()
	for _, o := range f.open {
		f.ruleHit(o)
	}
	if f.userNamespaced() && !f.caller.CgroupsOff {
		f.request.Rules, f.request.Unclosed = allowsOnly(f.spec.Linux.Resources.Devices)
	}
}

// unruled reports whether no device rule holds, because the runtime runs in a user namespace or as another user than
// root: runc and crun leave them out then. Nobody makes a device node there either (mknod(2)), so that a rule which opens
// a GPU opens none, and what counts is which of the node's come in by mounts.
func (f *finder) unruled() bool { return !f.node.Host.IsRoot() }

// bringsNodes reports whether a GPU's node is in linux.devices.
func (f *finder) bringsNodes() bool {
	return slices.ContainsFunc(f.spec.Linux.Devices, func(d specs.LinuxDevice) bool {
		return isChar(d.Type) && f.class(kernelMajor(d.Major), kernelMinor(d.Minor)) != ""
	})
}

// allowsOnly gives rules of which each opens a device in every reader's eyes; false where one is of another kind, as one that
// closes what comes before it.
func allowsOnly(rules []specs.LinuxDeviceCgroup) (allows []grant.DeviceRule, only bool) {
	for _, r := range rules {
		if !r.Allow || r.Type != "c" && r.Type != "b" || r.Access == "" || !agreed(r) {
			return nil, false
		}
		allows = append(allows, grant.DeviceRule{Allow: true, Type: r.Type[0], Major: number(r.Major), Minor: number(r.Minor), Access: r.Access})
	}
	return allows, true
}

func (f *finder) ruleHit(o opening) {
	h := grant.Hit{Vector: "rule:" + strconv.Itoa(o.index), Value: o.device() + " " + o.access, Code: f.codeFor(grant.GPUDeviceRule), Cover: grant.CoverNever}
	switch {
	case f.caller.CgroupsOff: // no rule of ours would apply either
		h.Vector, h.Value, h.Code = "rule:none", "the device cgroup is switched off", grant.RulesNotEnforced
	case o.index < 0 && len(f.spec.Linux.Resources.Devices) == 0:
		h.Vector, h.Value, h.Cover = "rule:none", "no device rule is given", grant.CoverNarrow
	case o.index < 0:
		h.Vector, h.Value, h.Cover = "rule:none", "the device rules do not begin by denying all", grant.CoverNarrow
	case o.kind == "a":
		h.Cover = grant.CoverNarrow
	case o.major != wildcard && o.minor != wildcard:
		class := f.class(o.major, o.minor)
		if o.major == grant.MajorDRM { // of a GPU that the inventory has, and the kernel not yet
			class = grant.ClassDRM
		}
		if class != "" {
			h.Cover, h.Node = f.cover(class), grant.Node{Class: class, Minor: int(o.minor)}
		}
	}
	if o.major != wildcard && f.becomes(o) {
		h.Value += toCome
	}
	if h.Cover != grant.CoverNarrow && o.index >= 0 {
		h.Removal = grant.Removal{Kind: grant.RemoveRule, Name: o.device()}
	}
	f.hit(h)
}

// toCome is told of a rule for devices that are no GPU's yet.
const toCome = " (a number that NVIDIA's driver gets when it is loaded)"

// becomes reports whether a rule opens no GPU's device now.
func (f *finder) becomes(o opening) bool {
	if o.major == grant.MajorDRM && o.minor == wildcard {
		return !f.anyDRM()
	}
	return f.class(o.major, max(o.minor, 0)) == ""
}

func (o opening) device() string { return o.kind + " " + digits(o.major) + ":" + digits(o.minor) }

func digits(n int64) string {
	if n == wildcard {
		return "*"
	}
	return strconv.FormatInt(n, 10)
}

// openings evaluates the rules in their order. Where the runtimes and cgroup versions disagree, it takes the reading
// that opens more: on cgroup v1 a deny removes only an allow of exactly the same device, so it does here.
func (f *finder) openings() []opening {
	rules := f.spec.Linux.Resources.Devices
	unruled := opening{index: -1, kind: "a", major: wildcard, minor: wildcard, access: "rwm"}
	if len(rules) == 0 || f.caller.CgroupsOff || f.request.Unruled {
		return []opening{unruled}
	}
	var open []opening
	if !beginsClosed(rules) {
		open = append(open, unruled)
	}
	for i, r := range rules {
		o := opening{index: i, kind: kind(r.Type), major: number(r.Major), minor: number(r.Minor), access: access(r.Access), odd: !agreed(r)}
		switch {
		case r.Allow && o.kind == "a":
			o.major, o.minor = wildcard, wildcard // numbers beside it mean nothing to most
			open = []opening{o}
		case r.Allow && opens(r) && f.reaches(o):
			open = append(open, o)
		case denies(r):
			open = f.close(open, o)
		}
	}
	return open
}

// beginsClosed reports whether rules begin with a rule for everything, as every engine writes them. Others add to what
// the runtime begins with: runc with nothing, crun on cgroup v1 with the parent's devices, which are all (measured).
func beginsClosed(rules []specs.LinuxDeviceCgroup) bool { return kind(rules[0].Type) == "a" }

// close applies a deny rule to what is open so far.
func (f *finder) close(open []opening, deny opening) []opening {
	if deny.kind == "a" && deny.major == wildcard && deny.minor == wildcard {
		return nil
	}
	open = slices.DeleteFunc(open, func(o opening) bool {
		return !o.odd && o.kind == deny.kind && o.major == deny.major && o.minor == deny.minor
	})
	if len(open) > 0 && open[0].kind == "a" && f.closesAll(open[0].index, deny.index) {
		open = open[1:]
	}
	return open
}

// closesAll reports whether the rules after an "allow everything", up to and with the last, deny every major of the
// driver, those that it could still get, and DRM where an NVIDIA GPU has nodes there or will have.
func (f *finder) closesAll(allow, last int) bool {
	majors := []int64{}
	for major := range f.classes() {
		majors = append(majors, int64(major))
	}
	if f.anyDRM() || f.cards() {
		majors = append(majors, grant.MajorDRM)
	}
	for major := int64(firstDynamic); major <= grant.LastMajor; major++ {
		if f.couldBecome(major, 0) && f.class(major, 0) == "" {
			majors = append(majors, major)
		}
	}
	for _, major := range majors {
		denied := slices.ContainsFunc(f.spec.Linux.Resources.Devices[allow+1:last+1], func(r specs.LinuxDeviceCgroup) bool {
			return denies(r) && kind(r.Type) == "c" && number(r.Minor) == wildcard && (number(r.Major) == major || number(r.Major) == wildcard)
		})
		if !denied {
			return false
		}
	}
	return true
}

// reaches reports whether an allow rule covers any GPU node.
func (f *finder) reaches(o opening) bool {
	switch {
	case o.kind != "c":
		return false
	case o.major == wildcard:
		return true
	case o.major == grant.MajorDRM && o.minor == wildcard:
		return f.anyDRM() || f.cards()
	}
	return f.class(o.major, o.minor) != "" || f.couldBecome(o.major, o.minor)
}

// opens reports whether a rule's access lets a device be read or written; on a rule for everything runc and cgroup v1
// ignore the access.
func opens(r specs.LinuxDeviceCgroup) bool {
	return kind(r.Type) == "a" || strings.ContainsAny(access(r.Access), "rw")
}

// access takes a missing one for all: no runtime says what it means.
func access(a string) string {
	if a == "" {
		return "rwm"
	}
	return a
}

// kind: a missing one is all; crun looks at the first letter, and what is neither 'a' nor 'b' is a character device.
func kind(t string) string {
	switch {
	case t == "" || t[0] == 'a':
		return "a"
	case t[0] == 'b':
		return "b"
	}
	return "c"
}
