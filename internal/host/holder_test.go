package host

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTheHolderOfALock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if err := os.WriteFile(path, fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
		t.Fatal(err)
	}
	if pid := Default().Holder(path); pid != 0 {
		t.Errorf("no process holds it, but %d is returned", pid)
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if pid := Default().Holder(path); pid != os.Getpid() {
		t.Errorf("process %d holds it, not %d", os.Getpid(), pid)
	}
	if pid := Default().Holder(path + "-none"); pid != 0 {
		t.Errorf("of no lock: %d", pid)
	}
}
