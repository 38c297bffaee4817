package cgmem

import (
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens/tokenstest"
)

// TestLinesAreAsTheLibraryReadsAndWritesThem: gpuledgerd reads calls and writes answers by the
// fields' tags.
func TestLinesAreAsTheLibraryReadsAndWritesThem(t *testing.T) {
	tokenstest.Writes(t, Call.encode, nil, tokenstest.Filled[Call](nil), Call{}, tokenstest.Empty[Call](),
		Call{To: []grant.Share{{}}}, Call{Container: "\"\\\u2028<"}, Call{Container: "\xff"})
	tokenstest.Reads(t, tokenstest.Whole((*Answer).read), nil, tokenstest.Filled[Answer](nil))
}
