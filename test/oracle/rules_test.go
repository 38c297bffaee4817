package oracle

import (
	"slices"
	"testing"
)

// TestTheOracleAgreesWithTheRuntimes: each runtime's result for a list of rules, as measured with
// runc 1.1.5 and crun 1.8.1 or read in their sources. Without this test, an oracle that opens
// nothing would agree with every guard.
func TestTheOracleAgreesWithTheRuntimes(t *testing.T) {
	gpu := Device{195, 0}
	none := rule{kind: "a", major: -1, minor: -1, access: "rwm"}
	all, denied := none, none
	all.allow, denied.allow = true, false
	rules := func(begin rule, more ...rule) []rule { return append([]rule{begin}, more...) }
	c := func(allow bool, major, minor int64, access string) rule {
		return rule{allow, "c", major, minor, access}
	}
	for _, x := range []struct {
		name   string
		rules  []rule
		access string
		opens  []string
	}{
		{"none at all", nil, "rw", []string{"crun v1", "crun v2"}},
		{"everything denied", rules(denied), "r", nil},
		{"everything allowed", rules(all), "rw", []string{"runc v1", "runc v2", "crun v1", "crun v2"}},
		{"this device", rules(denied, c(true, 195, 0, "rw")), "rw",
			[]string{"runc v1", "runc v2", "crun v1", "crun v2"}},
		{"this device, to be made", rules(denied, c(true, 195, 0, "m")), "r", nil},
		{"the device beside it", rules(denied, c(true, 195, 1, "rwm")), "r", nil},
		{"its major", rules(denied, c(true, 195, -1, "r")), "r",
			[]string{"runc v1", "runc v2", "crun v1", "crun v2"}},
		{"its major, for reading, and it is written", rules(denied, c(true, 195, -1, "r")), "w", nil},
		{"reading and writing by two rules", rules(denied, c(true, 195, 0, "r"), c(true, 195, 0, "w")), "rw",
			[]string{"runc v1", "runc v2", "crun v1"}},
		{"taken back", rules(denied, c(true, 195, 0, "rw"), c(false, 195, 0, "rw")), "r", nil},
		{"a hole in its major, which runc refuses",
			rules(denied, c(true, 195, -1, "rw"), c(false, 195, 0, "rw")), "r", []string{"crun v1"}},
		{"everything but reading it", rules(all, c(false, 195, 0, "r")), "rw",
			[]string{"runc v2", "crun v2"}},
		{"everything but it", rules(all, c(false, 195, 0, "rwm")), "rw", nil},
		{"forgotten by a rule for all", rules(c(false, 195, 0, "rwm"), all), "r",
			[]string{"runc v1", "runc v2", "crun v1", "crun v2"}},
		{"of an unknown type", rules(denied, rule{true, "u", 195, 0, "rw"}), "r", []string{"crun v2"}},
		{"of a number beyond 32 bits", rules(denied, c(true, 1<<32+195, 0, "rw")), "r", []string{"crun v2"}},
		{"of block devices", rules(denied, rule{true, "b", 195, 0, "rwm"}), "r", nil},
	} {
		var opens []string
		for _, f := range []struct {
			name string
			filter
		}{{"runc v1", runcV1}, {"runc v2", runcV2}, {"crun v1", crunV1}, {"crun v2", crunV2}} {
			if f.filter(x.rules, gpu, x.access) {
				opens = append(opens, f.name)
			}
		}
		if !slices.Equal(opens, x.opens) {
			t.Errorf("%s: %v open it, want %v", x.name, opens, x.opens)
		}
	}
}
