package mpsstate

import (
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/tokens/tokenstest"
)

func TestTheStateIsAsTheLibraryReadsAndWritesIt(t *testing.T) {
	full := tokenstest.Filled[state](nil)
	tokenstest.Reads(t, tokenstest.Whole((*state).read), nil, full)
	tokenstest.Writes(t, state.encode, []json.Options{jsontext.WithIndent("  ")}, full, state{},
		tokenstest.Empty[state](), state{Problem: "\"\\\u2028<"}, state{Problem: "\xff"},
		state{Limits: map[string]grant.Bytes{"b": 1, "a": 1 << 63, "": 3}})
}
