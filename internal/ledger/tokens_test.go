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

// TestFilesAreReadAsTheLibraryReadsThem: every field with a tag, full and empty, in both
// directions.
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
	readsAs(t, tokenstest.Filled[foundRecord](special), (*foundRecord).read)
	binding := tokenstest.Filled[bindingRecord](special)
	binding.Life, binding.PID, binding.Left = 0, 0, false
	for _, b := range []bindingRecord{binding, {}, {
		Binding: grant.Binding{Cgroups: []string{}, Pod: grant.Identity{Namespace: "n\"\\\u2028"}}}} {
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

// TestValuesOfAnotherKindAreReadAsTheLibraryReadsThem: a file with one value of another kind is
// damaged. It is not read in part: a binding whose creator is skipped would look dead.
func TestValuesOfAnotherKindAreReadAsTheLibraryReadsThem(t *testing.T) {
	binding := bindingOf(id(1), "c")
	binding.Weaker, binding.Pod = "why", grant.Identity{UID: "u", Namespace: "n", Pod: "p", Container: "c"}
	binding.PIDNS, binding.TimeNS, binding.BootID, binding.Created, binding.Strength = 1, 2, "b", noon,
		grant.Strengths[0]
	binding.Cgroups, binding.Occupies = []string{"/a", "/b"}, []string{"/a"}
	binding.Driven, binding.Throttled, binding.Reserved = true, true, true
	misread(t, bindingRecord{1, binding}, (*bindingRecord).read)
	g := sample(1)
	g.Secret, g.Label, g.Compute, g.Expires, g.Draining, g.For = "ab12", "l", 25, noon, true,
		[]grant.Tie{"pod:u"}
	g.GPUs[0].Profile = "1g"
	misread(t, record{Version: 1, ID: g.ID, Owner: g.Owner, Secret: g.Secret, Label: g.Label, Mode: g.Mode,
		Strength: g.Strength,
		GPUs:     []share{{Share: g.GPUs[0], Unknown: jsontext.Value(`{"later":1}`)}}, Compute: g.Compute,
		Source: g.Source, Created: g.Created,
		Expires: g.Expires, Draining: g.Draining, For: g.For, Unknown: jsontext.Value(`{"unknown":[1]}`)},
		(*record).read)
	misread(t, foundRecord{1, "b", noon, map[string]grant.Bytes{gpu0: 1}, map[string]string{gpu0: "1/2"}},
		(*foundRecord).read)
}

// misread puts values of other kinds in the place of each value of a document, in turn.
func misread[T any](t *testing.T, value T, read func(*T, *jsontext.Decoder) error) {
	t.Helper()
	data, err := json.Marshal(value, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	var document any
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	failed := 0
	check := func() {
		t.Helper()
		data, err := json.Marshal(document, json.Deterministic(true))
		if err != nil {
			t.Fatal(err)
		}
		var got, want T
		ours := tokens.Whole(data, func(d *jsontext.Decoder) error { return read(&got, d) })
		theirs := json.Unmarshal(data, &want)
		if (ours == nil) != (theirs == nil) || ours == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%s\nread    %+v (%v)\nlibrary %+v (%v)", data, got, ours, want, theirs)
		}
		if theirs != nil {
			failed++
		}
	}
	eachValue(document, func(other any) { document = other }, func(v any, set func(any)) {
		for _, other := range []any{"x", -1.5, true, nil, []any{true}, map[string]any{"x": 1.0}} {
			set(other)
			check()
		}
		set(v)
	})
	if failed < 20 {
		t.Errorf("only %d documents could not be read", failed)
	}
}

// eachValue calls a function with every value in a document, and with what puts another in its
// place.
func eachValue(v any, set func(any), do func(v any, set func(any))) {
	do(v, set)
	switch in := v.(type) {
	case map[string]any:
		for name, member := range in {
			eachValue(member, func(other any) { in[name] = other }, do)
		}
	case []any:
		for i, element := range in {
			eachValue(element, func(other any) { in[i] = other }, do)
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
