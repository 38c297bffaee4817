package limits

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestLimitsHaveWhatContextsTake: new files do, and those that exist keep what they have.
func TestLimitsHaveWhatContextsTake(t *testing.T) {
	path, dir := filepath.Join(t.TempDir(), "contexts"), filepath.Join(t.TempDir(), "limits")
	if known := ReadContexts(path); len(known) > 0 {
		t.Errorf("without a file: %v", known)
	}
	mustDo(t, Contexts{uuid1: 500 * grant.MiB, "GPU-other": 1}.Save(path))
	begins := func(bytes grant.Bytes) {
		t.Helper()
		contexts := func(uuid string) grant.Bytes { return ReadContexts(path)[uuid] }
		mustDo(t, Ensure(dir, shares(grant.GiB, bytes), 0, contexts))
		if r := open(t, dir).record; r.Device[0].Context != 0 ||
			grant.Bytes(r.Device[1].Context) != 500*grant.MiB {
			t.Errorf("%d and %d", r.Device[0].Context, r.Device[1].Context)
		}
	}
	begins(grant.GiB)
	mustDo(t, Contexts{uuid1: 300 * grant.MiB}.Save(path))
	begins(2 * grant.GiB)
	for _, text := range []string{"", "\n\n", uuid0, uuid0 + " ", uuid0 + " -1", uuid0 + " 1 2", " 7"} {
		mustDo(t, os.WriteFile(path, []byte(text+"\n"+uuid1+" 7\n"), 0o600))
		if known := ReadContexts(path); known[uuid1] != 7 || known[uuid0] != 0 {
			t.Errorf("%q: %v", text, known)
		}
	}
}
