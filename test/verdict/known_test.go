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
		{"with trust = \"adopt\" no container asks by annotation", asksBesideAdoption},
		{"cgroups off: a container with a grant has the inventory's code, not rules-not-enforced",
			cgroupsOff},
		{"a CDI name of a granted GPU is refused", cdiName},
		{"without enforced rules, an annotation that changes device rules is refused", systemdRootless},
	}
}

// asksBesideAdoption: docs/asking.md has no such condition. docs/grants.md says only that without
// an identity nothing is adopted.
func asksBesideAdoption(in verdict.Input, want, got verdict.Verdict) bool {
	p := verdict.ReadPolicy(in.Policy)
	return p.Adopt && (slices.Contains(p.AskEngines, in.Engine) || want.Code == verdict.AskNotAllowed) &&
		got.Code == verdict.GrantNotFound
}

// cgroupsOff: docs/adr/0050, "Only the code `internal` comes before it".
func cgroupsOff(in verdict.Input, want, got verdict.Verdict) bool {
	return in.CgroupsOff && want.Code == verdict.RulesNotEnforced && got.Code == in.Node.Inventory
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

// systemdRootless: docs/adr/0050, "Device rules count for nothing, in both directions."
func systemdRootless(in verdict.Input, _, got verdict.Verdict) bool {
	return in.Node.Rootless && got.Code == verdict.RulesNotEnforced &&
		(strings.Contains(string(in.Config), "org.systemd.property.") || strings.Contains(string(in.Config),
			"run.oci.delegate-cgroup"))
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
