package verdict_test

import "github.com/gpuledger/gpuledger/test/verdict"

// knownDisagreements are mistakes of the product that are known. A row goes when the product is
// mended.
var knownDisagreements []known

// known is a kind of disagreement, and whether one is of that kind.
type known struct {
	what string
	is   func(in verdict.Input, want, got verdict.Verdict) bool
}

// knownAs names a disagreement that is known; "" if it is not.
func knownAs(in verdict.Input, want, got verdict.Verdict) string {
	for _, k := range knownDisagreements {
		if k.is(in, want, got) {
			return k.what
		}
	}
	return ""
}
