package driver

import (
	"strings"
	"testing"
)

func TestPlainNames(t *testing.T) {
	for name, want := range map[string]bool{"libcuda.so.1": true, "_x": true, "0": true, "a+b-c.so": true,
		strings.Repeat("a", 201): true, "": false, strings.Repeat("a", 202): false, ".so": false,
		"-l": false, "+": false, "a/b": false, "a\n": false, "a b": false, "ä": false, "a\xff": false,
		"a\x00": false, "..": false} {
		if isPlainName(name) != want {
			t.Errorf("%q is a plain name: %v", name, !want)
		}
	}
}
