package ocispec

import (
	"reflect"
	"slices"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/tokens"
	"github.com/gpuledger/gpuledger/internal/tokens/tokenstest"
)

// TestReadingEqualsTheJSONLibrary: every field with a tag is read, with the same result as by the
// library.
func TestReadingEqualsTheJSONLibrary(t *testing.T) {
	reads(t, ReadUser)
	reads(t, ReadCapabilities)
	reads(t, ReadRoot)
	reads(t, ReadMounts)
	reads(t, ReadIDMapping)
	reads(t, ReadHooks)
	reads(t, ReadDevice)
	reads(t, ReadNamespace)
	reads(t, ReadRule)
}

// TestMountsShareTheirOptions: each mount has its own options in any order of equal ones, and an
// append to one mount's does not change another's.
func TestMountsShareTheirOptions(t *testing.T) {
	want := []specs.Mount{{Options: []string{"ro", "bind"}}, {Options: []string{"ro", "bind"}},
		{Options: []string{"rw"}}, {}, {Options: []string{"ro", "bind"}}, {Options: []string{"rw"}},
		{Options: []string{"rw"}}, {Options: []string{}}}
	var got []specs.Mount
	text := `[{"options":["ro","bind"]},{"options":["ro","bind"]},{"options":["rw"]},{"options":null},` +
		`{"options":["ro","bind"]},{"options":["rw"]},{"options":["rw"]},{"options":[]}]`
	err := tokens.Whole([]byte(text), func(d *jsontext.Decoder) error { return ReadMounts(d, &got) })
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v\ngot  %+v\nwant %+v", err, got, want)
	}
	one, other := append(got[5].Options, "one"), append(got[6].Options, "other")
	if one[1] != "one" || other[1] != "other" {
		t.Errorf("what was added to one mount's options is another's: %q, %q", one, other)
	}
}

func reads[T any](t *testing.T, read func(*jsontext.Decoder, *T) error) {
	t.Helper()
	full := tokenstest.Filled[T](nil)
	for _, value := range []T{full, *new(T)} {
		text := marshal(t, value)
		var got T
		err := tokens.Whole(text, func(d *jsontext.Decoder) error { return read(d, &got) })
		if err != nil || !reflect.DeepEqual(got, value) {
			t.Errorf("%T: %v\ngot  %+v\nfrom %s", got, err, got, text)
		}
	}
}

// TestWritingIsTheLibrarys: every field with a tag is written, with the same result as by the
// library.
func TestWritingIsTheLibrarys(t *testing.T) {
	writes(t, WriteDevice, tokenstest.Filled[specs.LinuxDevice](nil), specs.LinuxDevice{})
	writes(t, WriteRule, tokenstest.Filled[specs.LinuxDeviceCgroup](nil), specs.LinuxDeviceCgroup{})
	mount := tokenstest.Filled[specs.Mount](nil)
	mount.UIDMappings, mount.GIDMappings = nil, nil // MountWriter does not write these
	same := mount
	same.Destination = "/elsewhere"
	longer := mount
	longer.Options = append(slices.Clip(mount.Options), "rw")
	var mw MountWriter
	writes(t, mw.Write, mount, same, specs.Mount{}, longer, mount, specs.Mount{Source: "a\"\\\u2028\x01",
		Options: mount.Options[:1]}, same)
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
