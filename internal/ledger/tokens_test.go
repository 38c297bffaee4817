package ledger

import (
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens/tokenstest"
)

// TestFilesAreAsTheLibraryReadsAndWritesThem: every field with a tag, full and empty, in both
// directions. A file with one value of another kind is damaged. It is not read in part: a binding
// whose creator is skipped would look dead.
func TestFilesAreAsTheLibraryReadsAndWritesThem(t *testing.T) {
	indented := []json.Options{jsontext.WithIndent("  ")}
	special := func(field any) bool {
		switch field := field.(type) {
		case *jsontext.Value:
			*field = jsontext.Value(`{"unknown \u0061":[1,{"x":null}, 1.50e3,[],{} ],"later":"\u00e9<\/>"}`)
		case *grant.Mode:
			*field = grant.Modes[0]
		case *grant.Strength:
			*field = grant.Strengths[0]
		default:
			return false
		}
		return true
	}
	full := tokenstest.Filled[record](special)
	none := tokenstest.Empty[record]()
	none.Unknown = nil // an object has at least its brackets
	tokenstest.Reads(t, tokenstest.Whole((*record).read), nil, full)
	tokenstest.Reads(t, tokenstest.Whole((*record).read), nil, record{Mode: grant.Modes[1]})
	tokenstest.Writes(t, record.encode, indented, full, record{}, none,
		record{Label: "n\"\\\u2028<"}, record{Label: "\xff"}, record{App: "a"},
		record{Unknown: jsontext.Value(`{}`)},
		record{Created: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)})

	binding := tokenstest.Filled[bindingRecord](special)
	binding.Life, binding.PID, binding.Left = 0, 0, false
	tokenstest.Reads(t, tokenstest.Whole((*bindingRecord).read), nil, binding)
	tokenstest.Writes(t, bindingRecord.encode, indented, binding, bindingRecord{},
		tokenstest.Empty[bindingRecord](),
		bindingRecord{Binding: grant.Binding{Pod: grant.Identity{Namespace: "n\"\\\u2028"}}})

	found := tokenstest.Filled[foundRecord](nil)
	tokenstest.Reads(t, tokenstest.Whole((*foundRecord).read), nil, found)
	tokenstest.Writes(t, foundRecord.encode, indented, found, foundRecord{},
		tokenstest.Empty[foundRecord](),
		foundRecord{Held: map[string]string{"b": "1/2", "a": "", "\u2028": "x"}},
		foundRecord{GPUs: map[string]grant.Bytes{"\xff": 1}})
}
