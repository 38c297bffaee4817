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

// TestReadUIDs: a file without a line of four uids is an error, and never root's. A process can
// have a newline in its name, which the kernel escapes.
func TestReadUIDs(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want [4]uint32
		ok   bool
	}{
		"four":             {"Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t9\t9\t9\t9\n", [4]uint32{1, 2, 3, 4}, true},
		"in the name":      {"Name:\tx\\nUid:\t0\t0\t0\t0\nUid:\t7\t7\t7\t7\n", [4]uint32{7, 7, 7, 7}, true},
		"no line":          {"Name:\tx\nGid:\t9\t9\t9\t9\n", [4]uint32{}, false},
		"three":            {"Name:\tx\nUid:\t1\t2\t3\n", [4]uint32{}, false},
		"five":             {"Name:\tx\nUid:\t1\t2\t3\t4\t5\n", [4]uint32{}, false},
		"more than 32 bit": {"Name:\tx\nUid:\t1\t2\t3\t4294967296\n", [4]uint32{}, false},
	} {
		path := filepath.Join(t.TempDir(), "status")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadUIDs(path)
		if (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("%s: %v and %v, want %v", name, got, err, c.want)
		}
	}
}
