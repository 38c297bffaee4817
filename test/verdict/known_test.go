package verdict_test

import (
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/test/verdict"
)

// knownDisagreements are mistakes of the product that are known. A row goes when the product is
// mended.
var knownDisagreements []known

func init() {
	knownDisagreements = []known{
		{"a CDI name of a granted GPU is refused", cdiName},
	}
}

// cdiName: the contract says "CDI: those inside the grant are kept, any other: refuse"; the code
// is named cdi-device-outside-grant.
func cdiName(in verdict.Input, want, got verdict.Verdict) bool {
	if !strings.Contains(string(in.Config), "cdi.k8s.io/") || !slices.Contains(got.Codes,
		verdict.CDIDeviceOutsideGrant) {
		return false
	}
	less := slices.DeleteFunc(slices.Clone(got.Codes),
		func(c verdict.Code) bool { return c == verdict.CDIDeviceOutsideGrant })
	return len(less) == 0 && (want.Kind == verdict.Admit || want.Code == verdict.InjectionImpossible) ||
		slices.Equal(want.Codes, less)
}

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
