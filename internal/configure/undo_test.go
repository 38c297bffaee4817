package configure

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestUndoKeepsTheLinkOfRunningContainers: an engine stops a container by the program that started
// it, so the link that configure made stays until the containers have ended. The engine's own files
// are restored at once, so new containers start without gpuledger.
func TestUndoKeepsTheLinkOfRunningContainers(t *testing.T) {
	const state = "/var/lib/gpuledger"
	for engine, link := range map[grant.Engine]string{
		grant.Containerd: "/usr/bin/gpuledger-runtime.containerd",
		grant.CRIO:       "/usr/bin/gpuledger-runtime.crio",
		grant.Docker:     "/usr/bin/gpuledger-runtime.docker",
	} {
		o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n",
			"/etc/containerd/config.toml": "version = 2\n", "/etc/crio/crio.conf": "",
			"/etc/docker/daemon.json": "{}\n"}), engine)
		before := files(t, o.Root)
		p, err := New(o)
		if err == nil {
			err = p.Apply()
		}
		if err != nil {
			t.Fatal(engine, err)
		}
		for range 2 { // it can be repeated
			undone(t, o, state, []grant.Process{{PID: 7, Start: 70}})
			for _, path := range []string{link, "/etc/gpuledger/config.toml"} {
				if _, err := os.Lstat(filepath.Join(o.Root, path)); err != nil {
					t.Errorf("%s: while a container runs, the undo has removed %s", engine, path)
				}
			}
			r, u, err := planUndo(o, state)
			if err != nil || len(u.Named) > 0 || len(r.Files) != 2 {
				t.Errorf("%s: the engine's files name gpuledger in %v, the record has %+v: %v", engine,
					u.Named, r.Files, err)
			}
		}
		undone(t, o, state, nil)
		if after := files(t, o.Root); after != before {
			t.Errorf("%s: when the container has ended, the undo leaves\n%s\nwant\n%s", engine, after, before)
		}
		if r, _, err := readRecord(o.Installation(), state); err != nil || !r.isOver() {
			t.Errorf("%s: the record is %+v, %v", engine, r, err)
		}
	}
}

// TestOnlyALinkOfConfigureKeepsAnUndoWaiting: a package's link stays after the undo, so no
// container needs what the undo removes.
func TestOnlyALinkOfConfigureKeepsAnUndoWaiting(t *testing.T) {
	o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n",
		"/etc/containerd/config.toml": "version = 2\n"}), grant.Containerd)
	if err := os.Symlink("gpuledger-runtime",
		filepath.Join(o.Root, "/usr/bin/gpuledger-runtime.containerd")); err != nil {
		t.Fatal(err)
	}
	for _, packaged := range []bool{true, false} {
		p, err := New(o)
		if err == nil {
			err = p.Apply()
		}
		if err != nil {
			t.Fatal(err)
		}
		r, _, err := readRecord(o.Installation(), "/var/lib/gpuledger")
		if err != nil || len(r.Files) == 0 || r.madeLink() == packaged {
			t.Errorf("with a package's link %v: made is %v, of %+v: %v", packaged, r.madeLink(), r.Files, err)
		}
		undone(t, o, "/var/lib/gpuledger", nil)
		if err := os.RemoveAll(filepath.Join(o.Root, "/usr/bin/gpuledger-runtime.containerd")); err != nil {
			t.Fatal(err)
		}
	}
}
