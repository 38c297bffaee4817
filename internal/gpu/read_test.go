package gpu

import (
	"reflect"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
	"github.com/gpuledger/gpuledger/internal/tokens/tokenstest"
)

// TestReadEqualsTheJSONLibrary: every field with a tag is read, with the same result as by
// encoding/json.
func TestReadEqualsTheJSONLibrary(t *testing.T) {
	full := tokenstest.Filled[grant.Inventory](func(field any) bool {
		_, isShim := field.(*grant.Shim) // Shim is not in the file
		return isShim
	})
	read := tokenstest.Whole(func(inv *grant.Inventory, d *jsontext.Decoder) error {
		return readInventory(d, inv)
	})
	tokenstest.Reads(t, read, nil, full)
	tokenstest.Reads(t, read, nil, grant.Inventory{})
	for _, caps := range []string{"null", "[]", "[1]", "[1,2,3]", "[null,2]", `[1,"2"]`} {
		sameAsTheLibrary(t, []byte(`{"gpus":[{"mig":[{"caps":`+caps+`}]}]}`))
	}
}

func TestWriteEqualsTheJSONLibrary(t *testing.T) {
	full := tokenstest.Filled[grant.Inventory](nil)
	empty := tokenstest.Empty[grant.Inventory]()
	emptyParts := full
	emptyParts.Driver.Files = []grant.DriverFile{{}, {Names: []string{}}, {Names: []string{"<\u2028>"}}}
	emptyParts.GPUs = []grant.GPU{{}, {Links: []string{}, Render: []string{}, MIG: []grant.MIGDevice{{}}},
		{Index: -1, NUMA: -1, MIG: []grant.MIGDevice{{Caps: [2]int{0, 1}}}}}
	wrong, late := full, full
	wrong.Source, late.Taken = "\xff", time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	tokenstest.Writes(t, encode, []json.Options{jsontext.WithIndent("  ")}, full, grant.Inventory{}, empty,
		emptyParts, wrong, late)
}

func FuzzReadInventory(f *testing.F) {
	f.Add(
		[]byte(
			`{"version":1,"taken":"2026-11-22T00:00:00Z","driver":{"files":[{"names":["a"]}]},` +
				`"majors":{"nvidia":195},"gpus":[{"mig":[{"caps":[1,2]}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) { sameAsTheLibrary(t, data) })
}

func sameAsTheLibrary(t *testing.T, data []byte) {
	t.Helper()
	var got, want grant.Inventory
	ours := tokens.Whole(data, func(d *jsontext.Decoder) error { return readInventory(d, &got) })
	theirs := json.Unmarshal(data, &want)
	if (ours == nil) != (theirs == nil) || ours == nil && !reflect.DeepEqual(got, want) {
		t.Errorf("%s\nread %+v (%v)\nby the library %+v (%v)", data, got, ours, want, theirs)
	}
}
