package host_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuledger/gpuledger/internal/host"
)

func TestCharacterMajorsLeaveBlockDevicesOut(t *testing.T) {
	h := host.Host{Proc: t.TempDir()}
	text := "Character devices:\n  1 mem\n  4 tty\n  4 ttyS\n511 nvidia-uvm\n\nBlock devices:\n  7 " +
		"loop\n259 blkext\n"
	if err := os.WriteFile(filepath.Join(h.Proc, "devices"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	majors, err := h.CharacterMajors()
	if err != nil {
		t.Fatal(err)
	}
	if len(majors) != 3 || !majors[1] || !majors[4] || !majors[511] {
		t.Errorf("got %v, want 1, 4 and 511", majors)
	}
}

func TestCharacterMajorsWithoutProcDevices(t *testing.T) {
	if _, err := (host.Host{Proc: t.TempDir()}).CharacterMajors(); err == nil {
		t.Error("got no error where /proc/devices is missing")
	}
}
