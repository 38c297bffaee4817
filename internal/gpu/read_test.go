package gpu

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

// TestReadIsTheLibrarys: every field with a tag is read, and as the library reads it.
func TestReadIsTheLibrarys(t *testing.T) {
	var full grant.Inventory
	fill(reflect.ValueOf(&full).Elem(), new(int))
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
	f.Add([]byte(`{"version":1,"taken":"2026-11-22T00:00:00Z","driver":{"files":[{"names":["a"]}]},"majors":{"nvidia":195},"gpus":[{"mig":[{"caps":[1,2]}]}]}`))
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

// fill gives everything below v that is written a value of its own.
func fill(v reflect.Value, n *int) {
	*n++
	switch value := v.Addr().Interface().(type) {
	case *time.Time:
		*value = time.Unix(int64(*n), 5).UTC()
		return
	case *grant.Shim:
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
	case reflect.Array:
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Map:
		value := reflect.New(v.Type().Elem()).Elem()
		fill(value, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf(fmt.Sprint("key", *n)), value)
	case reflect.String:
		v.SetString(fmt.Sprint("value ", *n))
	case reflect.Int:
		v.SetInt(int64(*n))
	default:
		v.SetUint(uint64(*n))
	}
}
