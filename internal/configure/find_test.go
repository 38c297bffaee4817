package configure

import (
	"path/filepath"
	"testing"

	"github.com/gpuledger/gpuledger/internal/engines"
)

// TestFindSeesWhatWasConfigured: engines.Find finds what New plans, for every engine, with
// --as-default and without.
func TestFindSeesWhatWasConfigured(t *testing.T) {
	for _, engine := range engines.All {
		e := engines.Of(engine)
		for _, asDefault := range []bool{false, true} {
			root := newRoot(t, map[string]string{"/usr/bin/" + e.Program: ""})
			seen := engines.Find(root)
			if len(seen) != 1 || seen[0].Engine != engine || seen[0].Handlers[engines.Handler] != "" ||
				seen[0].Default == engines.Handler || seen[0].Err != nil {
				t.Fatalf("%s, not configured: %+v", engine, seen)
			}
			o := options(root, engine)
			o.AsDefault = asDefault
			p, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Apply(); err != nil {
				t.Fatal(err)
			}
			seen = engines.Find(root)
			if len(seen) != 1 || seen[0].Err != nil || (seen[0].Default == engines.Handler) != asDefault ||
				filepath.Base(seen[0].Handlers[engines.Handler]) != "gpuledger-runtime."+e.Name {
				t.Errorf("%s, configured (as default: %v): %+v", engine, asDefault, seen)
			}
		}
	}
}
