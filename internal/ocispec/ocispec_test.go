package ocispec

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/tokens"
)

// TestReadingIsTheLibrarys: every field with a tag is read, and as the library reads it.
func TestReadingIsTheLibrarys(t *testing.T) {
	reads(t, ReadUser)
	reads(t, ReadCapabilities)
	reads(t, ReadRoot)
	reads(t, ReadMount)
	reads(t, ReadIDMapping)
	reads(t, ReadHooks)
	reads(t, ReadDevice)
	reads(t, ReadNamespace)
	reads(t, ReadRule)
}

func reads[T any](t *testing.T, read func(*jsontext.Decoder, *T) error) {
	t.Helper()
	full := filled[T]()
	for _, value := range []T{full, *new(T)} {
		text := marshal(t, value)
		var got T
		err := tokens.Whole(text, func(d *jsontext.Decoder) error { return read(d, &got) })
		if err != nil || !reflect.DeepEqual(got, value) {
			t.Errorf("%T: %v\ngot  %+v\nfrom %s", got, err, got, text)
		}
	}
}

// TestWritingIsTheLibrarys likewise.
func TestWritingIsTheLibrarys(t *testing.T) {
	writes(t, WriteDevice, filled[specs.LinuxDevice](), specs.LinuxDevice{})
	writes(t, WriteRule, filled[specs.LinuxDeviceCgroup](), specs.LinuxDeviceCgroup{})
	mount := filled[specs.Mount]()
	mount.UIDMappings, mount.GIDMappings = nil, nil // which it does not write
	writes(t, WriteMount, mount, specs.Mount{}, specs.Mount{Source: "a\"\\\u2028\x01"})
}

func writes[T any](t *testing.T, write func(*tokens.Writer, T), values ...T) {
	t.Helper()
	for _, value := range values {
		w := tokens.NewWriter()
		write(w, value)
		if got, err := w.End(); err != nil || string(got) != string(marshal(t, value)) {
			t.Errorf("%v\ngot  %s\nwant %s", err, got, marshal(t, value))
		}
	}
}

func marshal(t *testing.T, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value, json.FormatNilSliceAsNull(true))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func filled[T any]() (value T) {
	fill(reflect.ValueOf(&value).Elem(), new(int))
	return value
}

// fill gives everything below v a value of its own.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.String:
		v.SetString(fmt.Sprint("value ", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	default:
		v.SetUint(uint64(*n))
	}
}
