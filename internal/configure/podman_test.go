package configure

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestUndoLeavesPodmanTheHandlerOfRunningContainers: Podman finds a container's runtime by the
// handler's name.
func TestUndoLeavesPodmanTheHandlerOfRunningContainers(t *testing.T) {
	const dropIn, state = "/etc/containers/containers.conf.d/zz-gpuledger.conf", "/var/lib/gpuledger"
	o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n"}), grant.Podman)
	applied(t, o)
	asDefault := fileAt(t, o.Root, dropIn)
	for range 2 { // it can be repeated
		undone(t, o, state, []grant.Process{{PID: 7, Start: 70}})
		left := fileAt(t, o.Root, dropIn)
		if left == asDefault || strings.Contains(left, "runtime = ") ||
			!strings.Contains(left, "gpuledger-runtime.podman") {
			t.Fatalf("while a container runs, the undo leaves\n%s\nof\n%s", left, asDefault)
		}
		if !strings.Contains(fileAt(t, o.Root, "/etc/gpuledger/config.toml"), "runtime") {
			t.Fatal("the wrapper has lost its configuration while a container runs")
		}
	}
	undone(t, o, state, nil)
	for _, name := range []string{dropIn, "/etc/gpuledger/config.toml"} {
		if _, err := os.Stat(filepath.Join(o.Root, name)); err == nil {
			t.Errorf("%s is still there:\n%s", name, fileAt(t, o.Root, name))
		}
	}
	if r, _, err := readRecord(o.Installation(), state); err != nil || !r.isOver() {
		t.Errorf("the record is %+v, %v", r, err)
	}
}

// TestPodmanMustReadOurFile: Podman reads no drop-in file where their directory is a link. An undo
// takes out what is gpuledger's all the same.
func TestPodmanMustReadOurFile(t *testing.T) {
	o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n"}), grant.Podman)
	applied(t, o)
	dir, elsewhere := o.Root+"/etc/containers/containers.conf.d", o.Root+"/etc/containers/site"
	if err := errors.Join(os.Rename(dir, elsewhere), os.Symlink("site", dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := New(o); err == nil ||
		!strings.Contains(err.Error(), "containers.conf.d is a symbolic link") {
		t.Errorf("got %v", err)
	}
	undone(t, o, "/var/lib/gpuledger", nil)
	if left, err := os.ReadDir(elsewhere); err != nil || len(left) > 0 {
		t.Errorf("the undo leaves %v, %v", left, err)
	}
}
