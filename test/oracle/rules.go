package oracle

import (
	"math"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// rule is one of linux.resources.devices. A number that the spec leaves out is -1.
type rule struct {
	allow        bool
	kind         string // "" where the spec gives none
	major, minor int64
	access       string
}

// filter reports whether a container with these rules opens a device with access "r", "w" or "rw".
// A container that the runtime would not start opens nothing.
type filter func(rules []rule, d Device, access string) bool

// within reports whether a is part of b, both of the letters r, w, m.
func within(a, b string) bool {
	for _, letter := range a {
		if !strings.ContainsRune(b, letter) {
			return false
		}
	}
	return true
}

func overlap(a, b string) bool { return strings.ContainsAny(a, b) }

// same is the key under which a device cgroup keeps an exception.
type same struct {
	kind         string
	major, minor int64
}

func (s same) matches(d Device) bool {
	return s.kind == "c" && (s.major < 0 || s.major == d.Major) && (s.minor < 0 || s.minor == d.Minor)
}

// table is a default and exceptions to it, as the kernel keeps it on v1 (security/device_cgroup.c)
// and runc in its emulator (opencontainers/cgroups devices/devices_emulator.go).
type table struct {
	allow      bool
	exceptions map[same]string
}

// put adds an exception, or takes one away.
func (t *table) put(r rule) {
	key, access := same{r.kind, r.major, r.minor}, t.exceptions[same{r.kind, r.major, r.minor}]
	for _, letter := range []string{"r", "w", "m"} {
		switch had := strings.Contains(access, letter); {
		case !strings.Contains(r.access, letter):
		case r.allow != t.allow && !had:
			access += letter
		case r.allow == t.allow && had:
			access = strings.ReplaceAll(access, letter, "")
		}
	}
	t.exceptions[key] = access
	if access == "" {
		delete(t.exceptions, key)
	}
}

func (t *table) reset(allow bool) { t.allow, t.exceptions = allow, map[same]string{} }

// kernel is the check at open. If all is denied, one exception must cover the access. If all is
// allowed, no exception may overlap it.
func (t *table) kernel(d Device, access string) bool {
	for key, has := range t.exceptions {
		if key.matches(d) && !t.allow && within(access, has) {
			return true
		}
		if key.matches(d) && t.allow && overlap(access, has) {
			return false
		}
	}
	return t.allow
}

// emulated is the table of runc's emulator. It is nil for rules that runc refuses: unknown types,
// no access, and a removal of a part of a wider exception.
func emulated(rules []rule) *table {
	t := &table{}
	t.reset(false)
	for _, r := range rules {
		if r.access == "" || strings.Trim(r.access, "rwm") != "" {
			return nil
		}
		switch r.kind {
		case "", "a":
			t.reset(r.allow)
			continue
		case "b", "c":
		default:
			return nil
		}
		if r.allow == t.allow && t.hole(r) {
			return nil
		}
		t.put(r)
	}
	return t
}

func (t *table) hole(r rule) bool {
	for key, access := range t.exceptions {
		exact := key.major == r.major && key.minor == r.minor
		wider := key.kind == r.kind && (key.major == -1 || key.major == r.major) &&
			(key.minor == -1 || key.minor == r.minor)
		if wider && !exact && overlap(access, r.access) {
			return true
		}
	}
	return false
}

// runcV1 writes the emulated table to the kernel.
func runcV1(rules []rule, d Device, access string) bool {
	t := emulated(rules)
	return t != nil && t.kernel(d, access)
}

// runcV2 makes a program of the emulated table (devices/ebpf/devicefilter). An exception counts if
// it names the whole access, else the default counts.
func runcV2(rules []rule, d Device, access string) bool {
	t := emulated(rules)
	if t == nil {
		return false
	}
	for key, has := range t.exceptions {
		if key.matches(d) && within(access, has) {
			return !t.allow
		}
	}
	return t.allow
}

// crunV1 writes rule by rule to a cgroup that begins with all devices of its parent (libcrun
// cgroup-resources.c: write_devices_resources_v1). A rule that the kernel cannot parse ends the
// create.
func crunV1(rules []rule, d Device, access string) bool {
	t := &table{}
	t.reset(true)
	for _, r := range rules {
		switch {
		case r.kind == "" || r.kind[0] == 'a':
			t.reset(r.allow)
		case r.kind != "b" && r.kind != "c", r.major < -1, r.minor < -1, r.major > math.MaxUint32,
			r.minor > math.MaxUint32, r.access == "":
			return false
		default:
			t.put(r)
		}
	}
	return t.kernel(d, access)
}

// crunV2 makes a program that checks the last rule first (libcrun ebpf.c: bpf_program_append_dev).
// Without rules it makes none. It takes any type but a and b for a character device, and cuts
// numbers to 32 bits.
func crunV2(rules []rule, d Device, access string) bool {
	for i := len(rules) - 1; i >= 0; i-- {
		r := rules[i]
		if r.kind != "" && r.kind[0] == 'b' {
			continue
		}
		major, minor := int64(int32(r.major)), int64(int32(r.minor))
		if (major < 0 || major == d.Major) && (minor < 0 || minor == d.Minor) && within(access, r.access) {
			return r.allow
		}
	}
	return len(rules) == 0
}

// Opens reports whether a container of "runc" or "crun" with these rules opens a device on version
// 1 or 2 of cgroups, with an access of "r", "w" or "rw". A container that the runtime would not
// start opens nothing.
func Opens(runtime string, version int, list []specs.LinuxDeviceCgroup, d Device, access string) bool {
	filters := map[string][]filter{"runc": {runcV1, runcV2}, "crun": {crunV1, crunV2}}
	return filters[runtime][version-1](rulesOf(list), d, access)
}

func rulesOf(list []specs.LinuxDeviceCgroup) []rule {
	var rules []rule
	for _, r := range list {
		rules = append(rules, rule{r.Allow, r.Type, number(r.Major), number(r.Minor), r.Access})
	}
	return rules
}
