package host

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestVersionOf: what a program prints counts only if it ends well, and in time.
func TestVersionOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runtime")
	ask := func(script string, timeout time.Duration) (string, error) {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return VersionOf(path, timeout)
	}
	for script, want := range map[string]string{
		`[ "$*" = --version ] && echo runc version 1.5.2; echo x >&2`: "runc version 1.5.2\n",
		"yes | head -c 5000": strings.Repeat("y\n", 2500),
		"true":               "",
	} {
		if got, err := ask(script, time.Minute); got != want || err != nil {
			t.Errorf("%s: %q (%v), want %q", script, got, err, want)
		}
	}
	for _, script := range []string{"echo runc version 1.5.2; exit 1", "echo x; kill -9 $$", "exec yes"} {
		if got, err := ask(script, time.Minute); got != "" || err == nil {
			t.Errorf("%s: %q, want an error", script, got)
		}
	}
	if _, err := ask("exec sleep 1000", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one that does not end: %v", err)
	}
	if _, err := VersionOf(path+"-missing", time.Minute); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("one that is missing: %v", err)
	}
}
