package driverlimits

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/cgmem"
	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
)

// TestASocketThatIsRemovedIsMadeAgain: another program's socket in its place is left alone.
func TestASocketThatIsRemovedIsMadeAgain(t *testing.T) {
	path := filepath.Join(daemontest.ShortDir(t), "limit.sock")
	var d requestSocket
	answer := func(context.Context, cgmem.Call, int) error { return nil }
	listens := func(when string) {
		t.Helper()
		daemontest.Must(t, d.open(path, answer))
		if err := cgmem.Ask(path, cgmem.Call{Op: cgmem.Clear}, time.Minute); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	listens("first")
	daemontest.Must(t, os.Remove(path))
	listens("removed")
	daemontest.Must(t, os.Remove(path))
	other, err := net.Listen("unix", path)
	daemontest.Must(t, err)
	if err := d.open(path, answer); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("another's in its place: %v", err)
	}
	daemontest.Must(t, other.Close())
	listens("the other is gone")
	d.close()
}

// TestARecordThatCannotBeRead: the error says what to do.
func TestARecordThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		`{"version":2,"boot_id":"b"}`: "its version is 2 and this gpuledgerd knows 1; start the gpuledgerd that wrote it, or remove it when no container with strength driver runs",
		"{":                           "; remove it when no container with strength driver runs",
	} {
		daemontest.Must(t, os.WriteFile(filepath.Join(dir, recordName), []byte(text), 0o600))
		if _, err := loadRecord(dir, "b"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
