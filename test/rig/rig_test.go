package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
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

// TestAProgramIsBuiltOnce, also where many goroutines are the first to want it. Here "go" is a
// script.
func TestAProgramIsBuiltOnce(t *testing.T) {
	dir := t.TempDir()
	const script = `#!/bin/sh
echo build >>"$0.calls"
while [ "$1" != -o ]; do shift; done
/bin/sleep 0.1
/bin/mkdir -p "${2%/*}" && echo built >"$2"
`
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	before := binaries
	binaries = t.TempDir()
	t.Cleanup(func() { binaries = before })
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if text, err := os.ReadFile(Binary(t, "gpuledger")); string(text) != "built\n" {
				t.Errorf("it has %q, %v", text, err)
			}
		})
	}
	all.Wait()
	if calls, err := os.ReadFile(filepath.Join(dir, "go.calls")); string(calls) != "build\n" {
		t.Errorf("it is built %d times, want once: %v", strings.Count(string(calls), "\n"), err)
	}
}
