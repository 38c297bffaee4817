package configure

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/filetree"
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
	before := unix.Umask(0o077) // of the process: no test of this package runs in parallel
	defer unix.Umask(before)
	applied(t, o)
	for _, dir := range []string{"/etc", "/etc/containers", "/etc/containers/containers.conf.d",
		"/etc/gpuledger"} {
		if is, err := os.Stat(o.Root + dir); err != nil || is.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v; want mode 0755", dir, is, err)
		}
	}
}

// TestACL: an edited file keeps its ACL. Without it, the mask in its mode would be the rights of
// the owning group. An undo leaves an ACL that was changed since.
func TestACL(t *testing.T) {
	const file, state = "/etc/docker/daemon.json", "/var/lib/gpuledger"
	for name, later := range map[string]string{"": "", "changed since": aclOf(64001, 4)} {
		o := options(newRoot(t, map[string]string{file: "{}\n", "/usr/bin/runc": "#!/bin/sh\n",
			"/etc/gpuledger/config.toml": packaged}), grant.Docker)
		path := filepath.Join(o.Root, file)
		set := func(acl string) {
			err := unix.Lsetxattr(path, filetree.ACLName, []byte(acl), 0)
			if errors.Is(err, unix.EOPNOTSUPP) {
				t.Skip("the test's file system has no ACLs: that files keep theirs is not shown")
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		wants := func(when, acl string) {
			t.Helper()
			_, is, err := o.Installation().System.Load(file)
			if err != nil || string(is.ACL) != acl || is.Mode != 0o660 {
				t.Errorf("%s %s: the file has mode %o and the ACL %x (%v), want %x", name, when,
					is.Mode, is.ACL, err, acl)
			}
		}
		acl := aclOf(64000, 6)
		set(acl)
		applied(t, o)
		wants("after configure", acl)
		if later != "" {
			acl = later
			set(acl)
		}
		undone(t, o, state, nil)
		wants("after the undo", acl)
	}
}

// TestDefaultACL: an edited file without an ACL does not get the default ACL of its directory.
func TestDefaultACL(t *testing.T) {
	const file = "/etc/docker/daemon.json"
	o := options(newRoot(t, map[string]string{file: "{}\n", "/usr/bin/runc": "#!/bin/sh\n"}), grant.Docker)
	err := unix.Lsetxattr(filepath.Join(o.Root, "/etc/docker"), "system.posix_acl_default",
		[]byte(aclOf(64000, 6)), 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("the test's file system has no ACLs: that files get none is not shown")
	}
	if err != nil {
		t.Fatal(err)
	}
	_, before, err := o.Installation().System.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	applied(t, o)
	_, is, err := o.Installation().System.Load(file)
	if err != nil || is.ACL != nil || is.Mode != before.Mode {
		t.Errorf("the file has mode %o and the ACL %x (%v)", is.Mode, is.ACL, err)
	}
}

// aclOf is an ACL by which a user of this number has the permissions, the owner rw and the owning
// group nothing. The mask is rw.
func aclOf(user uint32, permissions uint16) string {
	value := binary.LittleEndian.AppendUint32(nil, 2) // the version
	for _, e := range []struct {
		tag, permissions uint16
		id               uint32
	}{{1, 6, ^uint32(0)}, {2, permissions, user}, {4, 0, ^uint32(0)}, {0x10, 6, ^uint32(0)},
		{0x20, 0, ^uint32(0)}} {
		value = binary.LittleEndian.AppendUint16(value, e.tag)
		value = binary.LittleEndian.AppendUint16(value, e.permissions)
		value = binary.LittleEndian.AppendUint32(value, e.id)
	}
	return string(value)
}
