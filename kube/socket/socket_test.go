package socket

import (
	"path/filepath"
	"testing"
)

// TestTheSocketOfASuccessorStays: one listener closes while another one takes its path, as in a
// rolling update. Whatever comes first, the later listener has the path.
func TestTheSocketOfASuccessorStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for i := range 2000 {
		old, err := Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan error)
		go func() { closed <- old.Close() }()
		next, err := Listen(path)
		if e := <-closed; err != nil || e != nil {
			t.Fatal(err, e)
		}
		if err := next.Lost(); err != nil {
			t.Fatalf("at turn %d: %v", i, err)
		}
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
