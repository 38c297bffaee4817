package ledger

import (
	"reflect"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
	"github.com/gpuledger/gpuledger/internal/tokens/tokenstest"
)

// TestFilesAreReadAsTheLibraryReadsThem: every field with a tag, full and empty, in both directions.
func TestFilesAreReadAsTheLibraryReadsThem(t *testing.T) {
	special := func(field any) bool {
		switch field := field.(type) {
		case *jsontext.Value:
			*field = jsontext.Value(`{"unknown \u0061":[1,{"x":null}],"later":"\u00e9"}`)
		case *grant.Mode:
			*field = grant.Modes[0]
		case *grant.Strength:
			*field = grant.Strengths[0]
		default:
			return false
		}
		return true
	}
	readsAs(t, tokenstest.Filled[record](special), (*record).read)
	readsAs(t, record{Mode: grant.Modes[1]}, (*record).read)
	readsAs(t, tokenstest.Filled[outsideRecord](special), (*outsideRecord).read)
	binding := tokenstest.Filled[bindingRecord](special)
	binding.Life, binding.PID, binding.Left = 0, 0, false
	for _, b := range []bindingRecord{binding, {}, {Binding: grant.Binding{Cgroups: []string{}, Pod: grant.Identity{Namespace: "n\"\\\u2028"}}}} {
		readsAs(t, b, (*bindingRecord).read)
		want, err := json.Marshal(b, jsontext.WithIndent("  "))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := b.encode(); err != nil || string(got) != string(want) {
			t.Errorf("%v\ngot  %s\nwant %s", err, got, want)
		}
	}
}

func readsAs[T any](t *testing.T, value T, read func(*T, *jsontext.Decoder) error) {
	t.Helper()
	data, err := json.Marshal(value, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	var got, want T
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	err = tokens.Whole(data, func(d *jsontext.Decoder) error { return read(&got, d) })
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %v\ngot  %+v\nwant %+v", data, err, got, want)
	}
}
