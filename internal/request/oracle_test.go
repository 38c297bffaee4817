package request

import (
	"fmt"
	"math"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"
)

// Here are the device cgroup's readers once more, slow and plain, each as its source does it.
// Whatever any of them lets a container open, Find must have named.

// An oracle answers whether a container with these rules may open a character device with an access
// of "r", "w" or "rw". A false second result says that the runtime would have refused the rules.
type oracle func(rules []specs.LinuxDeviceCgroup, major, minor int64, access string) (opens, starts bool)

var oracles = map[string]oracle{
	"runc, cgroup v1": runcV1, "runc, cgroup v2": runcV2, "crun, cgroup v1": crunV1,
	"crun, cgroup v2": crunV2,
}

// exception is an entry of the kernel's list, and of runc's emulation of it; -1 is a wildcard.
type exception struct {
	kind         byte
	major, minor int64
}

// deviceCgroup is security/device_cgroup.c: a default and the exceptions from it.
type deviceCgroup struct {
	allows     bool
	exceptions map[exception]string
}

func number64(n *int64) int64 {
	if n == nil {
		return -1
	}
	return *n
}

// update is devcgroup_update_access: a rule for all resets, another one adds to the exceptions or
// takes exactly the same device out of them.
func (d *deviceCgroup) update(allow bool, kind byte, e exception, access string) {
	if kind == 'a' {
		d.allows, d.exceptions = allow, map[exception]string{}
		return
	}
	if allow != d.allows {
		d.exceptions[e] = union(d.exceptions[e], access)
		return
	}
	if left := minus(d.exceptions[e], access); left == "" {
		delete(d.exceptions, e)
	} else {
		d.exceptions[e] = left
	}
}

// permits is __devcgroup_check_permission: under "deny" one exception must match completely, under
// "allow" none may match in part.
func (d *deviceCgroup) permits(major, minor int64, access string) bool {
	for e, a := range d.exceptions {
		if e.kind != 'c' || e.major >= 0 && e.major != major || e.minor >= 0 && e.minor != minor {
			continue
		}
		if d.allows && common(a, access) != "" {
			return false
		}
		if !d.allows && minus(access, a) == "" {
			return true
		}
	}
	return d.allows
}

func union(a, b string) string { return a + minus(b, a) }
func minus(a, b string) string {
	return strings.Map(func(r rune) rune { return dropIf(strings.ContainsRune(b, r), r) }, a)
}
func common(a, b string) string {
	return strings.Map(func(r rune) rune { return dropIf(!strings.ContainsRune(b, r), r) }, a)
}

func dropIf(drop bool, r rune) rune {
	if drop {
		return -1
	}
	return r
}

// crunV1 writes each rule to devices.allow or devices.deny of a new cgroup, which has its parent's
// devices: all (write_devices_resources_v1). The kernel refuses a type but a, b, c, a number beyond
// 32 bits and a negative one.
func crunV1(rules []specs.LinuxDeviceCgroup, major, minor int64, access string) (opens, starts bool) {
	d := &deviceCgroup{allows: true, exceptions: map[exception]string{}}
	for _, r := range rules {
		e := exception{major: number64(r.Major), minor: number64(r.Minor)}
		if r.Type == "" || r.Type[0] == 'a' {
			d.update(r.Allow, 'a', e, r.Access)
			continue
		}
		odd := func(n *int64) bool { return n != nil && (*n < 0 || *n > math.MaxUint32) }
		if r.Type != "b" && r.Type != "c" || odd(r.Major) || odd(r.Minor) || r.Access == "" {
			return false, false
		}
		e.kind = r.Type[0]
		d.update(r.Allow, e.kind, e, r.Access)
	}
	return d.permits(major, minor, access), true
}

// emulate is runc's view of a rule list, on both versions of cgroups: it begins with nothing
// allowed, and a removal that would punch a hole into a wildcard is an error
// (opencontainers/cgroups, devices/devices_emulator.go).
func emulate(rules []specs.LinuxDeviceCgroup) (d *deviceCgroup, starts bool) {
	d = &deviceCgroup{exceptions: map[exception]string{}}
	for _, r := range rules {
		kind := r.Type
		if kind == "" {
			kind = "a"
		}
		if kind != "a" && kind != "b" && kind != "c" || r.Access == "" {
			return nil, false
		}
		e := exception{kind: kind[0], major: number64(r.Major), minor: number64(r.Minor)}
		if kind != "a" && r.Allow == d.allows {
			for _, wider := range []exception{{e.kind, -1, e.minor}, {e.kind, e.major, -1},
				{e.kind, -1, -1}} {
				if wider != e && common(d.exceptions[wider], r.Access) != "" {
					return nil, false
				}
			}
		}
		d.update(r.Allow, kind[0], e, r.Access)
	}
	return d, true
}

func runcV1(rules []specs.LinuxDeviceCgroup, major, minor int64, access string) (opens, starts bool) {
	if len(rules) == 0 {
		return false, true // measured: runc denies
	}
	d, starts := emulate(rules)
	if !starts {
		return false, false
	}
	for e := range d.exceptions { // each is written to the kernel as it stands, -1 as "*"
		if e.major < -1 || e.minor < -1 || e.major > math.MaxUint32 || e.minor > math.MaxUint32 {
			return false, false
		}
	}
	return d.permits(major, minor, access), true
}

// runcV2 makes a BPF program of the emulation: the exceptions, then the default. An exception
// applies where it names all of the access that is wanted (devices/ebpf/devicefilter).
func runcV2(rules []specs.LinuxDeviceCgroup, major, minor int64, access string) (opens, starts bool) {
	d, starts := emulate(rules)
	if !starts {
		return false, false
	}
	for e, a := range d.exceptions {
		if e.major > math.MaxUint32 || e.minor > math.MaxUint32 {
			return false, false
		}
		if e.kind == 'c' && (e.major < 0 || e.major == major) && (e.minor < 0 || e.minor == minor) &&
			minus(access, a) == "" {
			return !d.allows, true
		}
	}
	return d.allows, true
}

// crunV2 makes a BPF program in which the last rule that matches decides (create_dev_bpf,
// bpf_program_append_dev). It takes numbers as C's int, and any type but a and b for c.
func crunV2(rules []specs.LinuxDeviceCgroup, major, minor int64, access string) (opens, starts bool) {
	if len(rules) == 0 {
		return true, true // measured: crun applies none
	}
	for i := len(rules) - 1; i >= 0; i-- {
		r := rules[i]
		M, m := int32(number64(r.Major)), int32(number64(r.Minor))
		switch {
		case r.Type != "" && r.Type[0] == 'b',
			M >= 0 && int64(M) != major, m >= 0 && int64(m) != minor,
			minus(access, r.Access) != "":
			continue
		}
		return r.Allow, true
	}
	return false, true
}

type device struct{ major, minor int64 }

// gpuNodes are what must not be opened unseen; the scene knows these majors and DRM minors.
var gpuNodes = func() []device {
	nodes := []device{{226, 0}, {226, 128}}
	for _, major := range []int64{195, majorUVM, majorCaps, majorIMEX, majorSwitch} {
		for _, minor := range []int64{0, 1, 2, 128, 129, 254, 255} {
			nodes = append(nodes, device{major, minor})
		}
	}
	return nodes
}()

func ruleLists() *rapid.Generator[[]specs.LinuxDeviceCgroup] {
	number := func(plain ...int64) *rapid.Generator[*int64] {
		return rapid.Custom(func(t *rapid.T) *int64 {
			switch rapid.IntRange(0, 19).Draw(t, "form") {
			case 0:
				return ptr(rapid.SampledFrom([]int64{-1, -7, 1 << 31, 1<<32 + 195, 1<<32 + 508, 1<<32 - 1,
					math.MaxInt64, math.MinInt64}).Draw(t, "odd"))
			case 1, 2, 3, 4, 5, 6:
				return nil
			}
			return ptr(rapid.SampledFrom(plain).Draw(t, "number"))
		})
	}
	majors, minors := number(195, 195, majorUVM, majorCaps, majorIMEX, majorSwitch, 226, 1, 10),
		number(0, 1, 128, 254, 255)
	rule := rapid.Custom(func(t *rapid.T) specs.LinuxDeviceCgroup {
		r := specs.LinuxDeviceCgroup{
			Allow: rapid.Bool().Draw(t, "allow"),
			Type: rapid.SampledFrom([]string{"", "a", "b", "c", "c", "c", "c", "c", "c", "u",
				"char"}).Draw(t, "type"),
			Access: rapid.SampledFrom([]string{"rwm", "rwm", "rwm", "rw", "r", "w", "m", "rm", ""}).Draw(t,
				"access"),
		}
		if r.Type != "" && r.Type != "a" || rapid.IntRange(0, 3).Draw(t, "numbers") == 0 {
			r.Major, r.Minor = majors.Draw(t, "major"), minors.Draw(t, "minor")
		}
		return r
	})
	return rapid.Custom(func(t *rapid.T) []specs.LinuxDeviceCgroup {
		rules := rapid.SliceOfN(rule, 0, 8).Draw(t, "rules")
		all := specs.LinuxDeviceCgroup{Access: "rwm"}
		switch rapid.IntRange(0, 3).Draw(t, "begin") {
		case 0, 1: // as engines begin
			rules = append([]specs.LinuxDeviceCgroup{all}, rules...)
		case 2: // as a privileged container that somebody narrowed
			all.Allow = true
			begin := []specs.LinuxDeviceCgroup{all}
			for _, major := range []int64{195, majorUVM, majorCaps, majorIMEX, majorSwitch, 226} {
				if rapid.IntRange(0, 9).Draw(t, "deny") > 0 {
					begin = append(begin, specs.LinuxDeviceCgroup{
						Type: "c", Major: ptr(major), Access: "rwm"})
				}
			}
			rules = append(begin, rules...)
		}
		return rules
	})
}

func TestWhateverAnyRuntimeOpensIsFound(t *testing.T) {
	s := newScene(t)
	rapid.Check(t, func(t *rapid.T) {
		rules := ruleLists().Draw(t, "list")
		s.spec.Linux.Resources.Devices = rules
		r, err := Find(s.spec, s.caller, s.node)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Hits) > 0 {
			return
		}
		for name, opens := range oracles {
			for _, n := range gpuNodes {
				for _, access := range []string{"r", "w", "rw"} {
					if open, _ := opens(rules, n.major, n.minor, access); open {
						t.Fatalf("%s opens %d:%d for %s by\n%s", name, n.major, n.minor,
							access, describe(rules))
					}
				}
			}
		}
	})
}

// Lists as engines write them, of exact devices and wildcards after one rule for everything, are
// not suspected wrongly: where nothing is found, nothing is open, and where something is, some
// runtime opens it.
func TestPlainRuleListsAreJudgedExactly(t *testing.T) {
	s := newScene(t)
	rule := rapid.Custom(func(t *rapid.T) specs.LinuxDeviceCgroup {
		r := specs.LinuxDeviceCgroup{Allow: true, Type: rapid.SampledFrom([]string{
			"b", "c", "c", "c"}).Draw(t, "type"),
			Access: rapid.SampledFrom([]string{"rwm", "rw", "r", "m"}).Draw(t, "access")}
		if rapid.IntRange(0, 9).Draw(t, "wild") > 0 {
			r.Major = ptr(rapid.SampledFrom([]int64{1, 10, 195, majorUVM, 226, 500}).Draw(t, "major"))
		}
		if rapid.Bool().Draw(t, "exact") {
			r.Minor = ptr(rapid.SampledFrom([]int64{0, 1, 128, 129, 255}).Draw(t, "minor"))
		}
		return r
	})
	rapid.Check(t, func(t *rapid.T) {
		rules := append([]specs.LinuxDeviceCgroup{{Access: "rwm"}},
			rapid.SliceOfN(rule, 0, 4).Draw(t, "rules")...)
		s.spec.Linux.Resources.Devices = rules
		r, err := Find(s.spec, s.caller, s.node)
		if err != nil {
			t.Fatal(err)
		}
		if open := anyOpens(rules); open != (len(r.Hits) > 0) {
			t.Fatalf("open %v, found %d, by\n%s", open, len(r.Hits), describe(rules))
		}
	})
}

func anyOpens(rules []specs.LinuxDeviceCgroup) bool {
	for _, opens := range oracles {
		for _, n := range gpuNodes {
			r, _ := opens(rules, n.major, n.minor, "r")
			w, _ := opens(rules, n.major, n.minor, "w")
			if r || w {
				return true
			}
		}
	}
	return false
}

func describe(rules []specs.LinuxDeviceCgroup) string {
	var b strings.Builder
	for _, r := range rules {
		fmt.Fprintf(&b, "  allow %v, type %q, %d:%d, access %q\n", r.Allow, r.Type, number64(r.Major),
			number64(r.Minor), r.Access)
	}
	return b.String()
}
