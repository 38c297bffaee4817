package rig

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Mount mounts in the tests' namespace until the test ends. Such tests must not run beside others
// that use the target.
func Mount(t testing.TB, source, target, kind string, flags uintptr, data string) {
	t.Helper()
	if err := syscall.Mount(source, target, kind, flags, data); err != nil {
		t.Fatalf("cannot mount %s on %s: %v", source, target, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(target, syscall.MNT_DETACH); err != nil {
			t.Errorf("cannot unmount %s: %v", target, err)
		}
	})
}

// ReadOnly makes a directory read-only until the test ends.
func ReadOnly(t testing.TB, dir string) {
	t.Helper()
	Mount(t, dir, dir, "", syscall.MS_BIND, "")
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY,
		""); err != nil {
		t.Fatal(err)
	}
}

// Small mounts a file system of a few pages over a directory, copies its files, and fills it to the
// last byte.
func Small(t testing.TB, dir string) {
	t.Helper()
	full := t.TempDir()
	Mount(t, "tmpfs", full, "tmpfs", 0, "size=128k")
	if err := os.CopyFS(full, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	Mount(t, full, dir, "", syscall.MS_BIND, "")
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for page := make([]byte, 4096); err == nil; {
		_, err = f.Write(page)
	}
}

// Reboot gives the namespace another boot id until the test ends. That is the effect of a reboot on
// programs that read files.
func Reboot(t testing.TB) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "boot_id")
	if err := os.WriteFile(file, []byte("11111111-2222-3333-4444-555555555555\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	Mount(t, file, "/proc/sys/kernel/random/boot_id", "", syscall.MS_BIND, "")
}
