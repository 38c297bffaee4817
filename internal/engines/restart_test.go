package engines

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestDockerThatDoesNotRunIsNotReloaded: systemd refuses to reload a unit that is not active, and
// dockerd reads its file when it starts.
func TestDockerThatDoesNotRunIsNotReloaded(t *testing.T) {
	for name, row := range map[string]struct {
		systemctl, fails string
		pids             []int
		done             bool
		hint             string
	}{
		"it runs": {"exit 0", "", nil, true, ""},
		"it does not run": {"[ $1 = is-active ] && exit 3; exit 1", "", nil, false,
			"docker reads it when it starts"},
		"it runs by hand": {"echo not active; exit 3",
			"cannot reload docker.service: exit status 3: not active", []int{7}, false,
			"for docker to read it: systemctl reload docker.service"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte("#!/bin/sh\n"+row.systemctl+"\n"),
			0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir)
		r := Restart{Command: "systemctl reload docker.service", Unit: "docker.service", PIDs: row.pids,
			engine: grant.Docker}
		if err := r.Do(); (err == nil) != (row.fails == "") ||
			err != nil && !strings.Contains(err.Error(), row.fails) {
			t.Errorf("%s: got %v, want %q", name, err, row.fails)
		}
		if r.Done != row.done || r.Hint() != row.hint {
			t.Errorf("%s: done %v, hint %q", name, r.Done, r.Hint())
		}
	}
}
