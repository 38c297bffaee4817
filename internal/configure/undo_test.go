package configure

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestUndoKeepsTheLinkOfRunningContainers: containerd and Docker stop a container by the program
// that started it, so the link that configure made stays until the containers have ended. The
// engine's own files are restored at once, so new pods start without gpuledger. A package's link
// stays after the undo, so no container needs what the undo removes.
func TestUndoKeepsTheLinkOfRunningContainers(t *testing.T) {
	const state = "/var/lib/gpuledger"
	for _, packaged := range []bool{false, true} {
		for engine, name := range map[grant.Engine]string{
			grant.Containerd: "containerd", grant.Docker: "docker"} {
			o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n",
				"/etc/containerd/config.toml": "version = 2\n", "/etc/docker/daemon.json": "{}\n"}), engine)
			link := filepath.Join(o.Root, "/usr/bin/gpuledger-runtime."+name)
			if packaged {
				if err := os.Symlink("gpuledger-runtime", link); err != nil {
					t.Fatal(err)
				}
			}
			before := files(t, o.Root)
			applied(t, o)
			for range 2 { // it can be repeated
				u := undone(t, o, state, []grant.Process{{PID: 7, Start: 70}})
				if u.Waits() != "" {
					t.Errorf("%s: the undo waits for %q", name, u.Waits())
				}
				after := files(t, o.Root)
				if packaged {
					if after != before {
						t.Errorf("%s: with a package's link the undo leaves\n%s\nwant\n%s", name, after,
							before)
					}
					break
				}
				for _, path := range []string{link, filepath.Join(o.Root, "/etc/gpuledger/config.toml")} {
					if _, err := os.Lstat(path); err != nil {
						t.Errorf("%s: while a container runs, the undo leaves\n%s", name, after)
					}
				}
				if _, u, err := planUndo(o, state); err != nil || len(u.Named) > 0 {
					t.Errorf("%s: the engine's files name gpuledger in %v: %v", name, u.Named, err)
				}
			}
			undone(t, o, state, nil)
			if after := files(t, o.Root); after != before {
				t.Errorf("%s: when the container has ended, the undo leaves\n%s\nwant\n%s", name, after,
					before)
			}
			if r, _, err := readRecord(o.Installation(), state); err != nil || !r.isOver() {
				t.Errorf("%s: the record is %+v, %v", name, r, err)
			}
		}
	}
}

// TestUndoLeavesCRIOTheHandlerOfRunningPods: CRI-O finds the runtime of a pod that names a handler
// by that name, also with a package's link.
func TestUndoLeavesCRIOTheHandlerOfRunningPods(t *testing.T) {
	const dropIn, state = "/etc/crio/crio.conf.d/zz-gpuledger.conf", "/var/lib/gpuledger"
	o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n", "/etc/crio/crio.conf": ""}),
		grant.CRIO)
	if err := os.Symlink("gpuledger-runtime",
		filepath.Join(o.Root, "/usr/bin/gpuledger-runtime.crio")); err != nil {
		t.Fatal(err)
	}
	before := files(t, o.Root)
	applied(t, o)
	for range 2 {
		undone(t, o, state, []grant.Process{{PID: 7, Start: 70}})
		left := fileAt(t, o.Root, dropIn)
		if strings.Contains(left, "default_runtime") ||
			!strings.Contains(left, `runtime_path = "/usr/bin/gpuledger-runtime.crio"`) {
			t.Fatalf("while a pod with the handler runs, the undo leaves\n%s", left)
		}
		r, _, err := readRecord(o.Installation(), state)
		if crio := (grant.Process{PID: 9, Start: 90}); err != nil ||
			!slices.Contains(callers(r, []grant.Process{crio}, false), crio) {
			t.Errorf("a CRI-O that was started since then knows the handler, and the record says %+v: %v",
				r, err)
		}
	}
	undone(t, o, state, nil)
	if after := files(t, o.Root); after != before {
		t.Errorf("when the pod has ended, the undo leaves\n%s\nwant\n%s", after, before)
	}
}

// TestUndoThatKeepsTheHandlerIsKilled: the file was written, and the record was not.
func TestUndoThatKeepsTheHandlerIsKilled(t *testing.T) {
	const state = "/var/lib/gpuledger"
	for engine, dropIn := range map[grant.Engine]string{
		grant.Podman: "/etc/containers/containers.conf.d/zz-gpuledger.conf",
		grant.CRIO:   "/etc/crio/crio.conf.d/zz-gpuledger.conf",
	} {
		for name, monitors := range map[string][]grant.Process{
			"a container runs": {{PID: 7, Start: 70}}, "none runs any more": nil} {
			o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n",
				"/etc/crio/crio.conf": ""}), engine)
			applied(t, o)
			d, err := configfile.Parse(dropIn, []byte(fileAt(t, o.Root, dropIn)))
			if err != nil {
				t.Fatal(err)
			}
			unset(t, d, defaultPaths[engine]...)
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

// TestUndoLeavesLinks: a directory that configure made was moved, and a link is in its place.
func TestUndoLeavesLinks(t *testing.T) {
	o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n"}), grant.Containerd)
	applied(t, o)
	dir, site := o.Root+"/etc/containerd", o.Root+"/srv"
	if err := errors.Join(os.Rename(dir, site), os.Symlink("/srv", dir)); err != nil {
		t.Fatal(err)
	}
	write(t, o.Root, "/srv/certs.d/hosts.toml", "")
	undone(t, o, "/var/lib/gpuledger", nil)
	if target, err := os.Readlink(dir); err != nil || target != "/srv" {
		t.Errorf("/etc/containerd leads to %q (%v)", target, err)
	}
	if _, err := os.Stat(site + "/config.toml"); err == nil {
		t.Error("the undo leaves gpuledger's file")
	}
}
