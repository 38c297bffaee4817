package configure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestUndoLeavesPodmanTheHandlerOfRunningContainers: Podman finds a container's runtime by the
// handler's name.
func TestUndoLeavesPodmanTheHandlerOfRunningContainers(t *testing.T) {
	const dropIn, state = "/etc/containers/containers.conf.d/zz-gpuledger.conf", "/var/lib/gpuledger"
	o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n"}), grant.Podman)
	p, err := New(o)
	if err == nil {
		err = p.Apply()
	}
	if err != nil {
		t.Fatal(err)
	}
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

// TestUndoOfPodmanIsKilled: the file was written, and the record was not.
func TestUndoOfPodmanIsKilled(t *testing.T) {
	const dropIn, state = "/etc/containers/containers.conf.d/zz-gpuledger.conf", "/var/lib/gpuledger"
	for name, monitors := range map[string][]grant.Process{
		"a container runs": {{PID: 7, Start: 70}}, "none runs any more": nil} {
		o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n"}), grant.Podman)
		p, err := New(o)
		if err == nil {
			err = p.Apply()
		}
		if err != nil {
			t.Fatal(err)
		}
		d, err := configfile.Parse(dropIn, []byte(fileAt(t, o.Root, dropIn)))
		if err != nil {
			t.Fatal(err)
		}
		unset(t, d, "engine", "runtime")
		write(t, o.Root, dropIn, string(d.Bytes()))
		undone(t, o, state, monitors)
		if _, err := os.Stat(filepath.Join(o.Root, dropIn)); (err == nil) != (monitors != nil) {
			t.Errorf("%s: after the second undo %s: %v", name, dropIn, err)
		}
		undone(t, o, state, nil)
		if r, _, err := readRecord(o.Installation(), state); err != nil || !r.isOver() {
			t.Errorf("%s: the record is %+v, %v", name, r, err)
		}
	}
}

// undone undoes it while these monitors run.
func undone(t *testing.T, o Options, state string, monitors []grant.Process) Undone {
	t.Helper()
	real := monitorsOf
	defer func() { monitorsOf = real }()
	monitorsOf = func(engines.Installation, string) []grant.Process { return monitors }
	u, err := Undo(o, state, false)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
