package configure

import (
	"strings"
	"testing"
)

// TestFlagsOfDockerd: with a directive in both its arguments and its file dockerd does not start.
func TestFlagsOfDockerd(t *testing.T) {
	for words, want := range map[string][2]string{ // without and with --as-default
		"dockerd -H fd:// --containerd=/run/containerd/containerd.sock": {},
		"dockerd --default-runtime=nvidia":                              {"", "--default-runtime"},
		"dockerd --default-runtime nvidia":                              {"", "--default-runtime"},
		"dockerd --add-runtime kata=/usr/bin/kata":                      {"--add-runtime", "--add-runtime"},
		"dockerd --feature containerd-snapshotter=true":                 {"--feature", "--feature"},
		`ExecStart=dockerd "--feature=cdi"`:                             {"--feature", "--feature"},
	} {
		for i, asDefault := range []bool{false, true} {
			if got := conflicting(strings.Fields(words), asDefault); got != want[i] {
				t.Errorf("%s, as default: %v: %q, want %q", words, asDefault, got, want[i])
			}
		}
	}
}
