package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReopen: Reopen returns the file of the handle or an error.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("meant"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	handle, err := OpenInRoot(root, "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	f, err := Reopen(handle)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if text, err := io.ReadAll(f); err != nil || string(text) != "meant" {
		t.Errorf("%q (%v)", text, err)
	}
	if os.Geteuid() != 0 {
		t.Skip("not root: what happens where /proc is something else is not shown")
	}
	got := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its mount namespace
		got <- func() error {
			other := fmt.Sprintf("/proc/self/fd/%d", handle.Fd())
			err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "",
				unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", "/proc", "tmpfs", 0, ""),
				os.MkdirAll(filepath.Dir(other), 0o755), os.WriteFile(other, []byte("other"), 0o600))
			if err != nil {
				return err
			}
			_, err = Reopen(handle)
			return err
		}()
	}()
	if err := <-got; !errors.Is(err, unix.ESTALE) {
		t.Errorf("where /proc is something else: %v", err)
	}
}

// TestReopenWaitsForNoLease: the kernel would wait 45 seconds for it, and no create or delete has
// that time.
func TestReopenWaitsForNoLease(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	handle := os.NewFile(uintptr(fd), path)
	defer handle.Close()
	tenant, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer tenant.Close()
	signal.Ignore(unix.SIGIO) // the kernel's signal to give the lease back
	defer signal.Reset(unix.SIGIO)
	if _, err := unix.FcntlInt(tenant.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("this file system has no leases (%v): that Reopen does not wait for one is not shown", err)
	}
	if _, err := Reopen(handle); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("beside a lease: %v", err)
	}
}
