package doctor

import (
	"fmt"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// strengths says for the modes that limit what a container can take how strongly they do here.
func strengths(f Facts) []Line { return append(append(strength(f), throttle(f)...), mps(f)...) }

// mps: its daemons are NVIDIA's program, under gpuledgerd. A node without the program is no worse
// for it.
func mps(f Facts) []Line {
	switch minimum := f.Policy.Rules.MinimumStrength; {
	case !f.Inventory.Driver.HasMPS():
		return []Line{
			{Status: OK,
				Message: "mode mps has strength server, and cannot be used on this node: the driver's " +
					"files have no " + grant.MPSControl}}
	case !grant.StrengthServer.AtLeast(minimum):
		return []Line{
			{Status: OK,
				Message: fmt.Sprintf("mode mps has strength server, and policy.minimum_strength is %q: its "+
					"grants are refused (limit-unenforceable)", minimum)}}
	case f.Daemon == 0:
		return []Line{
			{Status: OK,
				Message: "mode mps has strength server, and needs gpuledgerd, which does not run: its " +
					"grants are refused (mps-not-ready)"}}
	}
	return []Line{
		{Status: OK, Message: "mode mps has strength server; docs/strength.md says what that does not hold"}}
}
