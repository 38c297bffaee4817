package inject

import (
	"encoding/binary"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpuledger/gpuledger/internal/grant"
)

func rule(text string, allow bool) grant.DeviceRule {
	list, err := parseV1(text)
	if err != nil || len(list) != 1 {
		panic(text)
	}
	list[0].Allow = allow
	return list[0]
}

func rulesOf(allow bool, texts ...string) []grant.DeviceRule {
	var rules []grant.DeviceRule
	for _, text := range texts {
		rules = append(rules, rule(text, allow))
	}
	return rules
}

func TestV1Writes(t *testing.T) {
	ordinary := []string{"b *:* m", "c *:* m", "c 1:3 rwm", "c 136:* rwm"}
	gpus := rulesOf(false, "c 195:* rw", "c 226:128 rw", "c 508:* rw")
	others := rulesOf(true, "b *:* rwm", "c 1:* rwm", "c 136:* rwm", "c 226:129 rwm")
	for _, c := range []struct {
		name   string
		now    []string
		change Change
		want   []write
	}{
		{"nodes of a grant", ordinary, Change{Allow: rulesOf(true, "c 195:0 rw", "c 195:255 rw")},
			[]write{{"devices.allow", "c 195:0 rw"}, {"devices.allow", "c 195:255 rw"}}},
		{"which are there", append(ordinary, "c 195:0 rwm"), Change{Allow: rulesOf(true, "c 195:0 rw")}, nil},
		{"some of the access is there", append(ordinary, "c 195:0 r"),
			Change{Allow: rulesOf(true, "c 195:0 rw")}, []write{{"devices.allow", "c 195:0 rw"}}},
		{"all is open", []string{"a *:* rwm"}, Change{Allow: rulesOf(true, "c 195:0 rw"),
			Close: gpus, Others: others},
			[]write{{"devices.deny", "a"}, {"devices.allow", "b *:* rwm"}, {"devices.allow", "c 1:* rwm"},
				{"devices.allow", "c 136:* rwm"}, {"devices.allow", "c 226:129 rwm"},
				{"devices.allow", "c 195:0 rw"}}},
		{"all character devices are open", []string{"b *:* m", "c *:* rwm"},
			Change{Close: gpus, Others: others},
			[]write{{"devices.deny", "c *:* rw"}, {"devices.allow", "c 1:* rw"},
				{"devices.allow", "c 136:* rw"}, {"devices.allow", "c 226:129 rw"}}},
		{"all of a GPU's major is open", append(ordinary, "c 195:* rwm"),
			Change{Allow: rulesOf(true, "c 195:1 rw"), Close: gpus, Others: others},
			[]write{{"devices.deny", "c 195:* rw"}, {"devices.allow", "c 195:1 rw"}}},
		{"all of DRM is open", append(ordinary, "c 226:* rw"), Change{Close: gpus, Others: others},
			[]write{{"devices.deny", "c 226:* rw"}, {"devices.allow", "c 226:129 rw"}}},
		{"one of DRM's that is no GPU's", append(ordinary, "c 226:129 rw", "c 226:130 rw"),
			Change{Close: rulesOf(false, "c 226:* rw"), Others: others},
			[]write{{"devices.deny", "c 226:130 rw"}}},
		{"a GPU beside the granted one", append(ordinary, "c 195:0 rw", "c 195:1 rw"),
			Change{Allow: rulesOf(true, "c 195:1 rw"), Close: gpus, Others: others},
			[]write{{"devices.deny", "c 195:0 rw"}, {"devices.allow", "c 195:1 rw"}}},
		{"a modeset node", append(ordinary, "c 195:254 rwm"), Change{Close: rulesOf(false, "c 195:254 rw")},
			[]write{{"devices.deny", "c 195:254 rw"}}},
		{"nothing to close", ordinary, Change{Close: gpus, Others: others}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := v1Writes(rulesOf(true, c.now...), c.change); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %v\nwant %v", got, c.want)
			}
		})
	}
}

func TestParseV1RefusesWhatItCannotRead(t *testing.T) {
	for _, text := range []string{"c 1:3", "x 1:3 r", "c 1 r", "c a:1 r", "c 1:3 r m", "cc 1:1 r",
		"c 99999999999:1 r"} {
		if rules, err := parseV1(text + "\n"); err == nil {
			t.Errorf("%q is %v", text, rules)
		}
	}
}

// device is what a program is asked about.
type device struct {
	kind, access, major, minor uint32
}

// run interprets a program as the kernel would; "fell" where it runs out of its end, which the
// verifier forbids.
func run(t interface{ Fatalf(string, ...any) }, program []byte, d device) (result uint32, fell bool) {
	context := map[int16]uint32{0: d.access<<16 | d.kind, 4: d.major, 8: d.minor}
	var registers [6]uint32
	for at := 0; at*8 < len(program); at++ {
		op, regs, offset, value := program[at*8], program[at*8+1],
			int16(binary.NativeEndian.Uint16(program[at*8+2:])), binary.NativeEndian.Uint32(program[at*8+4:])
		dst, src := &registers[regs&0xf], registers[regs>>4]
		switch op {
		case opLoadWord:
			*dst = context[offset]
		case opMove:
			*dst = value
		case opMoveReg:
			*dst = src
		case opAnd:
			*dst &= value
		case opShiftDown:
			*dst >>= value
		case opJumpNot:
			if *dst != value {
				at += int(offset)
			}
		case opJumpSame:
			if *dst == value {
				at += int(offset)
			}
		case opJump:
			at += int(offset)
		case opExit:
			return registers[regResult], false
		default:
			t.Fatalf("no instruction of ours: %x", op)
		}
	}
	return 0, true
}

// TestProgramSaysWhatTheRulesSay: for any rules and any device, the program answers as the rules
// read: allowed where an allow rule has all of the access, else denied where a closing rule has any
// and no other rule speaks of the device, else it is the next program's turn.
func TestProgramSaysWhatTheRulesSay(t *testing.T) {
	rules := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) grant.DeviceRule {
		return grant.DeviceRule{Type: rapid.SampledFrom([]byte("abc")).Draw(t, "type"),
			Major:  rapid.SampledFrom([]int64{-1, 1, 195, 511}).Draw(t, "major"),
			Minor:  rapid.SampledFrom([]int64{-1, 0, 1, 255}).Draw(t, "minor"),
			Access: rapid.SampledFrom([]string{"r", "w", "rw", "m", "rwm"}).Draw(t, "access")}
	}), 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		change := Change{Allow: rules.Draw(t, "allow"), Close: rules.Draw(t, "close"),
			Others: rules.Draw(t, "others")}
		d := device{rapid.SampledFrom([]uint32{devBlock, devChar}).Draw(t, "kind"),
			uint32(rapid.IntRange(1, 7).Draw(t, "access")),
			rapid.SampledFrom([]uint32{0, 1, 195, 511}).Draw(t, "major"),
			rapid.SampledFrom([]uint32{0, 1, 2, 255}).Draw(t, "minor")}
		want, goesOn := answer(change, d)
		got, fell := run(t, assemble(change), d)
		if fell != goesOn || !fell && got != want {
			t.Fatalf("%+v of %+v: got %d (on: %v), want %d (on: %v)", d, change, got, fell, want, goesOn)
		}
		if got, _ := run(t, append(assemble(change), allowAll()...), d); goesOn && got != 1 {
			t.Fatalf("%+v of %+v: what follows is not asked", d, change)
		}
	})
}

func answer(change Change, d device) (result uint32, goesOn bool) {
	matches := func(r grant.DeviceRule) bool {
		return covers(r, map[uint32]byte{devBlock: 'b', devChar: 'c'}[d.kind], int64(d.major), int64(d.minor))
	}
	for _, r := range change.Allow {
		if matches(r) && d.access&^uint32(accessBits(r.Access)) == 0 {
			return 1, false
		}
	}
	if slices.ContainsFunc(change.Others, matches) {
		return 0, true
	}
	for _, r := range change.Close {
		if matches(r) && d.access&uint32(accessBits(r.Access)) != 0 {
			return 0, false
		}
	}
	return 0, true
}

func TestSelfContained(t *testing.T) {
	call, load := instruction{op: opCall}.append(nil), instruction{op: opLoad64, src: 1}.append(nil)
	for name, c := range map[string]struct {
		program []byte
		ok      bool
	}{
		"nothing":        {nil, true},
		"ours":           {append(assemble(Change{Allow: rulesOf(true, "c 195:0 rw")}), allowAll()...), true},
		"a call":         {append(allowAll(), call...), false},
		"a map":          {append(allowAll(), load...), false},
		"a plain number": {instruction{op: opLoad64, dst: 2}.append(nil), true},
	} {
		if err := selfContained(c.program); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCgroupPath(t *testing.T) {
	const hybrid, unified = "5:devices:/a/b\n3:cpu,cpuacct:/c\n1:name=systemd:/s\n0::/u\n",
		"0::/system.slice/x:y.scope\n"
	for _, c := range []struct{ text, controller, want string }{
		{hybrid, "devices", "/a/b"}, {hybrid, "", "/u"}, {hybrid, "cpuacct", "/c"}, {hybrid, "memory", ""},
		{unified, "", "/system.slice/x:y.scope"}, {unified, "devices", ""}, {"", "", ""}, {"0:", "", ""},
	} {
		if got := cgroupPath([]byte(c.text), c.controller); got != c.want {
			t.Errorf("%q of %q: %q", c.controller, c.text, got)
		}
	}
}

func TestPathsBelowDev(t *testing.T) {
	for name, want := range map[string]string{"/dev/nvidia0": "nvidia0",
		"/dev/nvidia-caps/nvidia-cap1": "nvidia-caps|nvidia-cap1", "/dev/../etc/x": "", "/dev": "",
		"dev/x": "", "/etc/passwd": "", "/dev/./x": "x"} {
		words, err := belowDev(name)
		if got := strings.Join(words, "|"); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
