package host

import (
	"os"
	"path/filepath"
	"testing"
)

// TestTheBootsIDIsReadOnce: after a failed read it is read again.
func TestTheBootsIDIsReadOnce(t *testing.T) {
	proc := t.TempDir()
	file := filepath.Join(proc, "sys/kernel/random/boot_id")
	write := func(text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h := Default()
	h.Proc, h.boot = proc, &bootID{proc: proc}
	if id, err := h.BootID(); err == nil {
		t.Fatalf("without a file it is %q", id)
	}
	write("first\n")
	copied := h
	for range 2 {
		if id, err := h.BootID(); id != "first" || err != nil {
			t.Errorf("%q (%v)", id, err)
		}
		write("second\n")
		if id, err := copied.BootID(); id != "first" || err != nil {
			t.Errorf("of a copy: %q (%v)", id, err)
		}
	}
	elsewhere := Default()
	elsewhere.Proc = proc
	if id, err := elsewhere.BootID(); id != "second" || err != nil {
		t.Errorf("of another /proc: %q (%v)", id, err)
	}
}
