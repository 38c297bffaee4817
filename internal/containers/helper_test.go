package containers

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// files are what a node's /proc and /sys have, by path below them.
type files map[string]string

// write makes files below a directory.
func (f files) write(t *testing.T, dir string) {
	t.Helper()
	for name, text := range f {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
			os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// Processes of a node that a test makes up: each was started at 555.
const (
	creatorPID, initPID = 50, 60
	runningStat         = "50 (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 555"
	zombieStat          = "50 (x) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 555"
	laterStat           = "50 (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 556"
	spoiltStat          = "50"
)

// bound is a binding of the container "c", written here and now by a creator that does not run: no
// process starts with the kernel.
func bound(t *testing.T, root string) grant.Binding {
	t.Helper()
	h := host.Default()
	boot, err := h.BootID()
	pids, e := h.PIDNamespace()
	times, e2 := h.TimeNamespace()
	if err := errors.Join(err, e, e2); err != nil {
		t.Fatal(err)
	}
	return grant.Binding{RuntimeRoot: root, Container: "c", BootID: boot, PIDNS: pids, TimeNS: times,
		Creator: grant.Process{PID: os.Getpid(), Start: 1}}
}
