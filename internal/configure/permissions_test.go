package configure

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestUndoKeepsLaterPermissions: an undo restores the bytes, and leaves the permissions that were
// changed since.
func TestUndoKeepsLaterPermissions(t *testing.T) {
	const file, state = "/etc/docker/daemon.json", "/var/lib/gpuledger"
	for name, again := range map[string]func(Options) Options{
		"undone at once":         nil,
		"configured once more":   func(o Options) Options { o.AsDefault = true; return o },
		"configured for another": func(o Options) Options { o.Engine, o.AsDefault = grant.Podman, true; return o },
		"restored by hand":       func(o Options) Options { write(t, o.Root, file, "{}\n"); return o },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(newRoot(t, map[string]string{file: "{}\n", "/usr/bin/runc": "#!/bin/sh\n",
				"/etc/gpuledger/config.toml": packaged}), grant.Docker)
			o.AsDefault = false
			changed := []string{file, o.Config}
			before := files(t, o.Root)
			applied(t, o)
			for _, path := range changed {
				path = filepath.Join(o.Root, path)
				if err := os.Chown(path, 64000, 64001); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(path, 0o640); err != nil {
					t.Fatal(err)
				}
			}
			if again != nil {
				applied(t, again(o))
			}
			undone(t, o, state, nil)
			if again != nil {
				undone(t, again(o), state, nil)
			}
			if after := files(t, o.Root); after != before {
				t.Errorf("the undo leaves\n%s\nwant\n%s", after, before)
			}
			for _, path := range changed {
				_, is, err := o.Installation().System.Load(path)
				if err != nil || is.Mode != 0o640 || is.UID != 64000 || is.GID != 64001 {
					t.Errorf("%s has mode %o, owner %d:%d (%v)", path, is.Mode, is.UID, is.GID, err)
				}
			}
		})
	}
}

// TestNewDirectoriesAreReadableWithAnyUmask: Podman of a user without root fails if it cannot read
// containers.conf.d.
func TestNewDirectoriesAreReadableWithAnyUmask(t *testing.T) {
	o := options(newRoot(t, map[string]string{"/usr/bin/runc": "#!/bin/sh\n"}), grant.Podman)
	before := syscall.Umask(0o077) // of the process: no test of this package runs in parallel
	defer syscall.Umask(before)
	applied(t, o)
	for _, dir := range []string{"/etc", "/etc/containers", "/etc/containers/containers.conf.d",
		"/etc/gpuledger"} {
		if is, err := os.Stat(o.Root + dir); err != nil || is.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v; want mode 0755", dir, is, err)
		}
	}
}
