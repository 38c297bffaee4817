package doctor

import (
	"fmt"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// strengths reports how strong the limits of each sharing mode are on this node.
func strengths(f Facts) []Line {
	if f.Broken != nil { // there is no inventory, and another policy than the node's
		return []Line{unlooked("what holds containers to their limits was not looked at")}
	}
	return append(append(strength(f), throttle(f)...), mps(f)...)
}

// mps checks for NVIDIA's MPS program, which gpuledgerd starts. A node does not need it.
func mps(f Facts) []Line {
	problem := f.Inventory.Driver.MPSProblem()
	switch minimum := f.Policy.Rules.MinimumStrength; {
	case problem != "":
		return []Line{
			{Status: OK,
				Message: "mode mps has strength server, and cannot be used on this node: " + problem}}
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
	if users := f.Inventory.Driver.MPSUsersProblem(); users != "" &&
		f.Policy.Enforcement.MPSUsers == grant.MPSAll {
		return []Line{{Status: Warning,
			Message: "containers of mode mps are refused (mps-not-ready): " + users,
			Hint:    `install a newer driver, or set enforcement.mps_users to "root"`}}
	}
	return []Line{
		{Status: OK, Message: "mode mps has strength server; docs/strength.md says what that does not hold"}}
}
