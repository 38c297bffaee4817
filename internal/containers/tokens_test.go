package containers

import (
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/tokens/tokenstest"
)

// TestStatesAreReadAsTheLibraryReadsThem: as leniently, too.
func TestStatesAreReadAsTheLibraryReadsThem(t *testing.T) {
	reads(t, (*runcState).read)
	reads(t, (*crunState).read)
	reads(t, (*crunBundle).read)
	reads(t, (*runcLabels).read)
}

func reads[T any](t *testing.T, read func(*T, *jsontext.Decoder) error) {
	t.Helper()
	parse := func(data []byte) (value T, err error) {
		err = decode(data, func(d *jsontext.Decoder) error { return read(&value, d) })
		return value, err
	}
	lenient := []json.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
	tokenstest.Reads(t, parse, lenient, tokenstest.Filled[T](nil))
	tokenstest.Reads(t, parse, lenient, tokenstest.Empty[T]())
}
