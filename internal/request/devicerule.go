package request

import (
	"math"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// openRules are what a container's device rules let it open. grant.Request has most of them.
type openRules struct {
	open       []opening
	opensAny   bool // a rule lets GPUs be opened that no exact rule names
	unruled    bool // no device rule takes effect
	all        bool // a rule allows every device
	privileged bool
	taken      map[int]bool // majors that any driver has; nil unless all
	// unclosed says that the container has a user namespace, and that its rules are plain allows.
	// allows has them then.
	unclosed bool
	allows   []grant.DeviceRule
}

// readRules evaluates the device rules.
func readRules(f *containerFacts) (r openRules) {
	r.unruled = isUnruled(f.node)
	if r.unruled || f.caller.CgroupsOff {
		r.open = everything(&f.devices)
	} else {
		r.open = openings(f.spec.Linux.Resources.Devices, &f.devices)
	}
	r.opensAny = slices.ContainsFunc(r.open, func(o opening) bool { return o.minor == wildcard })
	if r.unruled {
		r.privileged = f.sysAdmin && bringsNodes(f)
		return r
	}
	r.all = slices.ContainsFunc(r.open, func(o opening) bool { return o.kind == "a" && o.index >= 0 })
	if r.all {
		f.devices.classes() // the rules that a grant puts in their place leave the driver's majors out
		r.taken = f.devices.taken()
	}
	r.privileged = r.all || f.sysAdmin && bringsNodes(f)
	if f.userNamespaced && !f.caller.CgroupsOff {
		r.allows, r.unclosed = allowsOnly(f.spec.Linux.Resources.Devices)
	}
	return r
}

// codeFor returns the code of a GPU's device or rule. In a privileged container it is that of the
// privilege: no person wrote the devices and rules one by one.
func (r *openRules) codeFor(code grant.Code) grant.Code {
	if r.privileged {
		return grant.PrivilegedGPU
	}
	return code
}

// isUnruled reports whether no device rule takes effect, because the runtime runs in a user
// namespace or as another user than root: runc and crun leave them out then. No process there can
// make a device node either (mknod(2)). So a rule that opens a GPU opens none, and only the node's
// own devices count that mounts bring.
func isUnruled(n NodeFacts) bool { return !n.Host.IsRoot() }

// bringsNodes reports whether a GPU's node is in linux.devices.
func bringsNodes(f *containerFacts) bool {
	return slices.ContainsFunc(f.spec.Linux.Devices, func(d specs.LinuxDevice) bool {
		return isChar(d.Type) && f.devices.class(kernelMajor(d.Major), kernelMinor(d.Minor)) != ""
	})
}

// allowsOnly returns rules of which every reader finds that each opens a device. It returns false
// if one is of another kind, for example one that closes what comes before it.
func allowsOnly(rules []specs.LinuxDeviceCgroup) (allows []grant.DeviceRule, only bool) {
	for _, r := range rules {
		if !r.Allow || r.Type != "c" && r.Type != "b" || r.Access == "" || !agreed(r) {
			return nil, false
		}
		allows = append(allows, grant.DeviceRule{Allow: true, Type: r.Type[0], Major: number(r.Major),
			Minor: number(r.Minor), Access: r.Access})
	}
	return allows, true
}

// opening is a device rule that lets GPU nodes be opened.
type opening struct {
	index        int    // in linux.resources.devices; -1: no rule closed it
	kind         string // "a" or "c"
	major, minor int64
	access       string
	odd          bool // readers disagree on its numbers, so no deny is sure to name the same device
}

// everything is every device, which no rule closed. On a machine without a GPU it is no opening:
// the container has all devices, and none of them is a GPU's (docs/adr/0065).
func everything(d *devices) []opening {
	if !d.reachable() {
		return nil
	}
	return []opening{{index: -1, kind: "a", major: wildcard, minor: wildcard, access: "rwm"}}
}

// openings evaluates rules in their order. If the runtimes and cgroup versions disagree, it takes
// the reading that opens more: on cgroup v1 a deny removes only an allow of exactly the same
// device, and so it does here.
func openings(rules []specs.LinuxDeviceCgroup, d *devices) []opening {
	if len(rules) == 0 {
		return everything(d)
	}
	var open []opening
	if !beginsClosed(rules) {
		open = everything(d)
	}
	for i, r := range rules {
		o := opening{index: i, kind: kind(r.Type), major: number(r.Major), minor: number(r.Minor),
			access: access(r.Access), odd: !agreed(r)}
		switch {
		case r.Allow && o.kind == "a" && d.reachable():
			o.major, o.minor = wildcard, wildcard // most readers ignore the numbers of such a rule
			open = []opening{o}
		case r.Allow && opens(r) && reaches(d, o):
			open = append(open, o)
		case denies(r):
			open = closed(open, o, rules, d)
		}
	}
	return open
}

// closed returns what is still open after a deny rule.
func closed(open []opening, deny opening, rules []specs.LinuxDeviceCgroup, d *devices) []opening {
	if deny.kind == "a" && deny.major == wildcard && deny.minor == wildcard {
		return nil
	}
	open = slices.DeleteFunc(open, func(o opening) bool {
		return !o.odd && o.kind == deny.kind && o.major == deny.major && o.minor == deny.minor
	})
	if len(open) > 0 && open[0].kind == "a" && closesAll(rules[open[0].index+1:deny.index+1], d) {
		open = open[1:]
	}
	return open
}

// closesAll reports whether the rules after an "allow everything" deny every major of the driver,
// those that it could still get, and DRM if an NVIDIA GPU has nodes there or will have.
func closesAll(rules []specs.LinuxDeviceCgroup, d *devices) bool {
	majors := []int64{}
	for major := range d.classes() {
		majors = append(majors, int64(major))
	}
	if d.anyDRM() || d.cards() {
		majors = append(majors, grant.MajorDRM)
	}
	for major := int64(firstDynamic); major <= grant.LastMajor; major++ {
		if d.couldBecome(major, 0) && d.class(major, 0) == "" {
			majors = append(majors, major)
		}
	}
	for _, major := range majors {
		denied := slices.ContainsFunc(rules, func(r specs.LinuxDeviceCgroup) bool {
			return denies(r) && kind(r.Type) == "c" && number(r.Minor) == wildcard &&
				(number(r.Major) == major || number(r.Major) == wildcard)
		})
		if !denied {
			return false
		}
	}
	return true
}

// reaches reports whether an allow rule covers any GPU node.
func reaches(d *devices, o opening) bool {
	switch {
	case o.kind != "c":
		return false
	case o.major == wildcard:
		return d.reachable()
	case o.major == grant.MajorDRM && o.minor == wildcard:
		return d.anyDRM() || d.cards()
	}
	return d.class(o.major, o.minor) != "" || d.couldBecome(o.major, o.minor)
}

// device returns the device of a rule, as people write it.
func (o opening) device() string { return o.kind + " " + digits(o.major) + ":" + digits(o.minor) }

func digits(n int64) string {
	if n == wildcard {
		return "*"
	}
	return strconv.FormatInt(n, 10)
}

// beginsClosed reports whether rules begin with a rule for everything, as every engine writes them.
// Others add to what the runtime begins with: runc with nothing, crun on cgroup v1 with the
// parent's devices, which are all (measured).
func beginsClosed(rules []specs.LinuxDeviceCgroup) bool { return kind(rules[0].Type) == "a" }

// wildcard is a major or minor that means all.
const wildcard = -1

// number reads a major or minor of a rule as crun does on cgroup v2: as an int of C. Every negative
// one means all to crun and to runc. The other readers refuse a number that does not fit.
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

// denies reports whether a deny rule stops every read and write of a device, for every reader. A
// missing access denies nothing (crun on cgroup v2).
func denies(r specs.LinuxDeviceCgroup) bool {
	return !r.Allow && agreed(r) && strings.Contains(r.Access, "r") && strings.Contains(r.Access, "w")
}

// opens reports whether a rule's access lets a device be read or written. On a rule for everything
// runc and cgroup v1 ignore the access.
func opens(r specs.LinuxDeviceCgroup) bool {
	return kind(r.Type) == "a" || strings.ContainsAny(access(r.Access), "rw")
}

// access takes a missing access for all: no runtime defines what it means.
func access(a string) string {
	if a == "" {
		return "rwm"
	}
	return a
}

// kind takes a missing type for all. crun reads the first letter, and what is neither 'a' nor 'b'
// is a character device.
func kind(t string) string {
	switch {
	case t == "" || t[0] == 'a':
		return "a"
	case t[0] == 'b':
		return "b"
	}
	return "c"
}
