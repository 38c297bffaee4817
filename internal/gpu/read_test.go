package gpu

import (
	"reflect"
	"testing"

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
	for _, inv := range []grant.Inventory{full, {}} {
		data, err := json.Marshal(inv, json.Deterministic(true))
		if err != nil {
			t.Fatal(err)
		}
		sameAsTheLibrary(t, data)
	}
	for _, caps := range []string{"null", "[]", "[1]", "[1,2,3]", "[null,2]", `[1,"2"]`} {
		sameAsTheLibrary(t, []byte(`{"gpus":[{"mig":[{"caps":`+caps+`}]}]}`))
	}
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
