package request

import (
	"slices"
	"testing"
)

func TestClassesOfIntelRdt(t *testing.T) {
	for _, c := range []struct {
		class   string
		refused bool
	}{
		{"", false}, {"guaranteed", false}, {"a..b", false}, {"...", false},
		{"/", false}, // the root's, to runc 1.5
		{".", true}, {"..", true}, {"a/b", true}, {"/a", true}, {"a/", true}, {"//", true},
		{"../cgroup/devices/libpod_parent/libpod-victim", true},
	} {
		s := newScene(t)
		s.spec.Linux.IntelRdt = &IntelRdt{ClosID: c.class}
		var want []string
		if c.refused {
			want = []string{"gpu-device-rule | intelRdt:closID | " + c.class + " | never"}
		}
		if got := s.hits(); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", c.class, got, want)
		}
	}
}
