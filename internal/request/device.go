package request

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// majorClasses inverts /proc/devices. Major 195 serves several names there, which the minor tells apart.
func majorClasses(majors map[string]int) map[int]grant.NodeClass {
	classes := map[int]grant.NodeClass{grant.MajorNVIDIA: grant.ClassGPU}
	for name, major := range majors {
		if major != grant.MajorNVIDIA {
			classes[major] = grant.NodeClass(name)
		}
	}
	return classes
}

// readDRM asks whose DRM nodes there are, but only for a spec that has to do with that major: the answer costs a look
// into sysfs for each.
func (f *finder) readDRM() error {
	names := func(major int64) bool { return major == grant.MajorDRM }
	wanted := slices.ContainsFunc(f.spec.Linux.Devices, func(d specs.LinuxDevice) bool { return names(d.Major) }) ||
		slices.ContainsFunc(f.spec.Linux.Resources.Devices, func(r specs.LinuxDeviceCgroup) bool {
			return names(number(r.Major)) || r.Allow && number(r.Major) == wildcard && opens(r.Access, r.Type)
		})
	if !wanted {
		return nil
	}
	var err error
	if f.drm, err = f.node.DRM(); err != nil {
		return err
	}
	return nil
}

// class tells what a character device is to the driver; "" is no GPU's.
func (f *finder) class(major, minor int64) grant.NodeClass {
	switch {
	case major == grant.MajorNVIDIA && minor == grant.MinorControl:
		return grant.ClassControl
	case major == grant.MajorNVIDIA && minor == grant.MinorModeset:
		return grant.ClassModeset
	case major == grant.MajorDRM && f.drm[int(minor)]:
		return grant.ClassDRM
	}
	return f.request.Devices.Majors[int(major)]
}

// cover says how a grant covers a node: a modeset node is dropped, any other must come with the grant.
func (f *finder) cover(class grant.NodeClass) grant.Cover {
	if class == grant.ClassModeset {
		return grant.CoverDrop
	}
	return grant.CoverNode
}

// deviceNodes judges linux.devices by number. In a user namespace runc cannot create nodes: it binds the host's node at
// the path and ignores the numbers, so there the path counts as well.
func (f *finder) deviceNodes() {
	for _, d := range f.spec.Linux.Devices {
		class, major, minor := grant.NodeClass(""), d.Major, d.Minor
		if isChar(d.Type) {
			class = f.class(major, minor)
		}
		if class == "" && f.userNamespaced() {
			class, major, minor = f.classAt(d.Path)
		}
		if class == "" {
			continue
		}
		f.hit(grant.Hit{Vector: "device:" + d.Path, Value: fmt.Sprintf("c %d:%d", major, minor), Code: f.codeFor(grant.GPUDeviceNode),
			Cover: f.cover(class), Node: grant.Node{Class: class, Minor: int(minor)}, Removal: grant.Removal{Kind: grant.RemoveDevice, Name: d.Path}})
	}
}

// codeFor blames a privileged container's devices and rules on the privilege: nobody wrote them one by one.
func (f *finder) codeFor(code grant.Code) grant.Code {
	if f.request.Privileged {
		return grant.PrivilegedGPU
	}
	return code
}

// classAt tells what the node at a path of the host is; nothing at the path is no GPU's.
func (f *finder) classAt(path string) (class grant.NodeClass, major, minor int64) {
	var st unix.Stat_t
	switch err := unix.Stat(path, &st); {
	case errors.Is(err, fs.ErrNotExist):
		return "", 0, 0
	case err != nil:
		f.err = fmt.Errorf("cannot tell what device %s is: %w", path, err)
		return "", 0, 0
	case st.Mode&unix.S_IFMT != unix.S_IFCHR:
		return "", 0, 0
	}
	major, minor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	if major == grant.MajorDRM && f.drm == nil {
		if f.drm, f.err = f.node.DRM(); f.err != nil {
			return "", 0, 0
		}
	}
	return f.class(major, minor), major, minor
}

// isChar: 'u' is an unbuffered character device, which mknod makes the same way.
func isChar(kind string) bool { return kind == "c" || kind == "u" }

// wildcard is a major or minor that means all.
const wildcard = -1

func number(n *int64) int64 {
	if n == nil {
		return wildcard
	}
	return *n
}

// opening is a device rule that lets GPU nodes be opened.
type opening struct {
	index        int // in linux.resources.devices; -1: there are no rules
	kind         string
	major, minor int64
	access       string
	everything   bool // it opens every device
}

// deviceRules judges what the device cgroup lets be opened. Creating a node ("m" alone) opens nothing.
func (f *finder) deviceRules() {
	f.open = f.openings()
	f.request.Privileged = slices.ContainsFunc(f.open, func(o opening) bool { return o.everything && o.index >= 0 }) ||
		f.request.SysAdmin && slices.ContainsFunc(f.spec.Linux.Devices, func(d specs.LinuxDevice) bool {
			return isChar(d.Type) && f.class(d.Major, d.Minor) != ""
		})
	for _, o := range f.open {
		f.ruleHit(o)
	}
}

func (f *finder) ruleHit(o opening) {
	h := grant.Hit{Vector: fmt.Sprintf("rule:%d", o.index), Value: fmt.Sprintf("%s %s:%s %s", o.kind, digits(o.major), digits(o.minor), o.access),
		Code: f.codeFor(grant.GPUDeviceRule), Cover: grant.CoverNever}
	switch {
	case f.caller.CgroupsOff:
		h.Vector, h.Value = "rule:none", "the device cgroup is switched off"
	case o.index < 0:
		h.Vector, h.Value, h.Cover = "rule:none", "no device rule is given", grant.CoverNarrow
	case f.request.Privileged && (o.major == wildcard || o.minor == wildcard):
		h.Cover = grant.CoverNarrow
	}
	if o.major != wildcard && o.minor != wildcard {
		class := f.class(o.major, o.minor)
		h.Cover, h.Node = f.cover(class), grant.Node{Class: class, Minor: int(o.minor)}
		h.Removal = grant.Removal{Kind: grant.RemoveRule, Name: fmt.Sprintf("c %d:%d", o.major, o.minor)}
	}
	f.hit(h)
}

func digits(n int64) string {
	if n == wildcard {
		return "*"
	}
	return fmt.Sprint(n)
}

// openings evaluates the rules in their order. Where the runtimes and cgroup versions disagree, it takes the reading
// that opens more: on cgroup v1 a deny removes only an allow of exactly the same device, so it does here.
func (f *finder) openings() []opening {
	rules := f.spec.Linux.Resources.Devices
	if len(rules) == 0 || f.caller.CgroupsOff {
		return []opening{{index: -1, major: wildcard, minor: wildcard, everything: true}} // crun applies none then; runc denies
	}
	var open []opening
	for i, r := range rules {
		o := opening{index: i, kind: kind(r.Type), major: number(r.Major), minor: number(r.Minor), access: access(r.Access)}
		switch {
		case r.Allow && o.kind == "a":
			o.everything = true
			open = []opening{o}
		case r.Allow && opens(r.Access, r.Type) && f.reaches(o):
			o.everything = o.major == wildcard
			open = append(open, o)
		case !r.Allow:
			open = f.close(open, o)
		}
	}
	return open
}

// close applies a deny rule to what is open so far.
func (f *finder) close(open []opening, deny opening) []opening {
	if !strings.Contains(deny.access, "r") || !strings.Contains(deny.access, "w") {
		return open // what is left is enough to use a GPU
	}
	if deny.kind == "a" && deny.major == wildcard && deny.minor == wildcard {
		return nil
	}
	open = slices.DeleteFunc(open, func(o opening) bool {
		return o.index >= 0 && o.kind == deny.kind && o.major == deny.major && o.minor == deny.minor
	})
	if len(open) > 0 && open[0].kind == "a" && f.closesAll(open[0].index, deny.index) {
		open = open[1:]
	}
	return open
}

// closesAll reports whether the rules after an "allow everything", up to and with the last, deny every major of the
// driver, and DRM where an NVIDIA GPU has nodes there.
func (f *finder) closesAll(allow, last int) bool {
	majors := []int64{}
	for major := range f.request.Devices.Majors {
		majors = append(majors, int64(major))
	}
	if f.anyDRM() {
		majors = append(majors, grant.MajorDRM)
	}
	for _, major := range majors {
		denied := slices.ContainsFunc(f.spec.Linux.Resources.Devices[allow+1:last+1], func(r specs.LinuxDeviceCgroup) bool {
			full := strings.Contains(access(r.Access), "r") && strings.Contains(access(r.Access), "w")
			return !r.Allow && full && kind(r.Type) == "c" && number(r.Minor) == wildcard && (number(r.Major) == major || number(r.Major) == wildcard)
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
		return f.anyDRM()
	}
	return f.class(o.major, o.minor) != ""
}

func (f *finder) anyDRM() bool {
	for _, nvidia := range f.drm {
		if nvidia {
			return true
		}
	}
	return false
}

// opens reports whether a rule's access lets a device be read or written; on a rule for everything runc and cgroup v1
// ignore the access.
func opens(a, t string) bool { return kind(t) == "a" || strings.ContainsAny(access(a), "rw") }

// access: runtimes take a missing one for all.
func access(a string) string {
	if a == "" {
		return "rwm"
	}
	return a
}

// kind: a missing one is all, 'u' is a character device.
func kind(t string) string {
	switch t {
	case "":
		return "a"
	case "u":
		return "c"
	}
	return t
}
