package request

import (
	"errors"
	"strings"
	"testing"
)

func TestUpdatesAreReadAsStrictly(t *testing.T) {
	for _, c := range []struct{ name, resources, key, err string }{
		{"an ordinary one", `{"memory":{"limit":1},"cpu":{"shares":2}}`, "", ""},
		{"raw keys", `{"unified":{"memory.high":"1"}}`, "", ""},
		{"the driver's limit", `{"unified":{"memory.high":"1","dmem.max":"x","dmem.low":"y"}}`, "dmem.low", ""},
		{"NUL in a key", `{"unified":{"dmem.max\u0000x":"1"}}`, "", `unified.dmem.max\x00x has a NUL; runtimes disagree on what it ends`},
		{"a key twice", `{"devices":[],"devices":[]}`, "", "at byte 14: duplicate name devices; runtimes disagree on which counts"},
		{"in capitals", `{"Devices":[]}`, "", `devices is spelt "Devices" there; runtimes disagree on whether it counts`},
		{"of the wrong type", `{"devices":{}}`, "", "devices is of the wrong type"},
		{"too large", strings.Repeat(" ", MaxSpec+1), "", "it has more than 16777216 bytes"},
	} {
		u, err := ParseUpdate([]byte(c.resources))
		if message(err) != c.err || u.DeviceMemoryKey() != c.key {
			t.Errorf("%s: key %q, error %v", c.name, u.DeviceMemoryKey(), err)
		}
	}
}

func TestUpdatesThatWiden(t *testing.T) {
	for _, c := range []struct {
		name      string
		had, want []string
		widens    string
	}{
		{"no rules", []string{"deny a"}, nil, ""},
		{"what containerd sends along: the same again", []string{"deny a", "allow c 195:0 rw"}, []string{"deny a", "allow c 195:0 rw"}, ""},
		{"another GPU", []string{"deny a", "allow c 195:0 rw"}, []string{"deny a", "allow c 195:1 rw"}, "c 195:1 rw"},
		{"another GPU, added without a deny", []string{"deny a", "allow c 195:0 rw"}, []string{"allow c 195:1 rw"}, "c 195:1 rw"},
		{"all GPUs after one", []string{"deny a", "allow c 195:0 rw"}, []string{"deny a", "allow c 195:* rw"}, "c 195:* rw"},
		{"one GPU of all", []string{"deny a", "allow c 195:* rw"}, []string{"deny a", "allow c 195:1 rw"}, ""},
		{"another minor after the first of every major", []string{"deny a", "allow c *:0 rw"}, []string{"deny a", "allow c 195:1 rw"}, "c 195:1 rw"},
		{"the first minor after the first of every major", []string{"deny a", "allow c *:0 rw"}, []string{"deny a", "allow c 195:0 rw"}, ""},
		{"everything", []string{"deny a", "allow c 195:* rw"}, []string{"allow a"}, "a *:* rwm"},
		{"everything, as before", []string{"allow a"}, []string{"allow a"}, ""},
		{"UVM, whose major is of this boot", []string{"deny a"}, []string{"deny a", "allow c 508:0 rw"}, "c 508:0 rw"},
		{"UVM as before", []string{"deny a", "allow c 508:0 rw"}, []string{"deny a", "allow c 508:0 rw"}, ""},
		{"another driver's device, added without a deny", []string{"deny a"}, []string{"allow c 10:200 rw"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			s.rules(c.had...)
			rule, widens, err := Widens(parseRules(t, c.want...), s.spec, s.node)
			if rule != c.widens || widens != (c.widens != "") || err != nil {
				t.Errorf("got %q, %v, %v", rule, widens, err)
			}
		})
	}
	s := newScene(t)
	s.node.DRM = func() (map[int]bool, error) { return nil, errors.New("no sysfs") }
	if _, _, err := Widens(parseRules(t, "allow c 226:* rw"), s.spec, s.node); err == nil {
		t.Error("it does not fail where it cannot tell")
	}
}

func TestRawCgroupKeysOfTheDriversLimit(t *testing.T) {
	unified := func(pairs ...string) func(*scene) {
		return func(s *scene) { s.spec.Linux.Resources.Unified = annotations(pairs...) }
	}
	check(t, []row{
		{"others", unified("memory.high", "1", "dmemory", "1", "misc.max", "x 1"), nil},
		{"the limit", unified("dmem.max", "nvidia/0000:3b:00.0/vidmem max"), []string{"limit-unenforceable | unified:dmem.max | nvidia/0000:3b:00.0/vidmem max | never"}},
		{"each of them, among others", unified("dmem.min", "a", "memory.high", "1", "dmem.low", "b"), []string{
			"limit-unenforceable | unified:dmem.low | b | never", "limit-unenforceable | unified:dmem.min | a | never"}},
	})
}
