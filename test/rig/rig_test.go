package rig

import (
	"fmt"
	"strings"
	"testing"
)

// TestTestLines: lines of test files are kept, also of several writes, and no others; the last 20.
func TestTestLines(t *testing.T) {
	var lines testLines
	for _, text := range []string{"=== RUN TestX\n    x_te",
		"st.go:7: why\n    containerd.go:1: a log\n", "    x_test.go:8: no end"} {
		if n, err := lines.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatalf("%d of %d bytes: %v", n, len(text), err)
		}
	}
	if got := lines.String(); got != "    x_test.go:7: why" {
		t.Errorf("kept %q", got)
	}
	fmt.Fprintln(&lines)
	for i := range 30 {
		fmt.Fprintf(&lines, "    x_test.go:9: line %d\n", i)
	}
	if got := lines.String(); strings.Count(got, "\n") != 19 || !strings.HasSuffix(got, "line 29") {
		t.Errorf("kept %q", got)
	}
}
