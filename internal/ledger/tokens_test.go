package ledger

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// TestFilesAreReadAsTheLibraryReadsThem: every field with a tag, full and empty, in both directions.
func TestFilesAreReadAsTheLibraryReadsThem(t *testing.T) {
	var full record
	fill(reflect.ValueOf(&full).Elem(), new(int))
	readsAs(t, full, (*record).read)
	readsAs(t, record{Mode: grant.Modes[1]}, (*record).read)
	var outside outsideRecord
	fill(reflect.ValueOf(&outside).Elem(), new(int))
	readsAs(t, outside, (*outsideRecord).read)
	var binding bindingRecord
	fill(reflect.ValueOf(&binding).Elem(), new(int))
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

// fill gives everything below v a value of its own.
func fill(v reflect.Value, n *int) {
	*n++
	switch value := v.Addr().Interface().(type) {
	case *time.Time:
		*value = time.Unix(int64(*n), 5).UTC()
		return
	case *jsontext.Value:
		*value = jsontext.Value(fmt.Sprintf(`{"unknown %d":[1,{"x":null}],"later":"\\u00e9"}`, *n))
		return
	case *grant.Mode:
		*value = grant.Modes[0]
		return
	case *grant.Strength:
		*value = grant.Strengths[0]
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Map:
		value := reflect.New(v.Type().Elem()).Elem()
		fill(value, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf(fmt.Sprint("key", *n)), value)
	case reflect.String:
		v.SetString(fmt.Sprint("value ", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(int64(*n))
	default:
		v.SetUint(uint64(*n))
	}
}
