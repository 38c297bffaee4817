package ledger

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"testing"

	strict "github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// FuzzBinding checks that a grant counts as free only if the file of its binding names another
// grant, or shows that this container is dead, whatever the file holds. With a file that cannot be
// read, the grant is never free.
func FuzzBinding(f *testing.F) {
	b := ledgerIn(f, f.TempDir())
	b.put(sample(1))
	b.bind(bindingOf(id(1), "c"))
	path := b.files.bindings.path(bindingKey(bindingOf("", "").RuntimeRoot, "c"))
	alive, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	b.bind(deadBinding(id(1), "c"))
	dead, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{alive, dead, nil, []byte("{}"), []byte(`{"version":2}`),
		[]byte(`{"version":1,"grant":"g-aaaaaaaaaaaa"}`), alive[:len(alive)/2], append(alive, dead...)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var read, byTags bindingRecord
		ours, theirs := tokens.Whole(data, read.read), strict.Unmarshal(data, &byTags)
		if (ours == nil) != (theirs == nil) || ours == nil && !reflect.DeepEqual(read, byTags) {
			t.Errorf("read %+v (%v), by the library %+v (%v)", read, ours, byTags, theirs)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := b.binding("c")
		if errors.Is(err, ErrNotFound) {
			t.Fatalf("a file that is there is not found: %v", err)
		}
		g, errGet := b.get(id(1))
		if errGet != nil {
			t.Fatalf("a binding's file makes its grant unreadable: %v", errGet)
		}
		if err != nil && len(g.Bindings) == 0 {
			t.Errorf("the grant is free although its binding cannot be read: %v", err)
		}
		if len(g.Bindings) > 0 {
			return
		}
		var said struct { // read by another library
			Version          int
			Grant, Container string
		}
		if errJSON := json.Unmarshal(data, &said); errJSON != nil || said.Version != 1 ||
			grant.ID(said.Grant) == id(1) && got.Life != grant.Dead {
			t.Errorf("the grant is free by %q (%v, %v)", data, errJSON, got.Life)
		}
	})
}
