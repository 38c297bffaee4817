package grants

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

// Sentence says what a grant is, and what holds a container to it.
func Sentence(n *node.Node, verb string, g grant.Grant) string {
	parts := make([]string, len(g.GPUs))
	for i, s := range g.GPUs {
		parts[i] = fmt.Sprintf("%s on GPU %d", s.Memory, s.Index)
		if s.Profile != "" {
			parts[i] = fmt.Sprintf("MIG device %s of GPU %d with %s", s.Profile, s.Index, s.Memory)
		}
	}
	text := fmt.Sprintf("%s %s to %s: %s, mode %s", verb, g.ID, Owner(g)+Tied(g, " for "),
		strings.Join(parts, ", "), g.Mode)
	if g.Compute > 0 {
		text += fmt.Sprintf(", %d%% compute", g.Compute)
	}
	if !g.Expires.IsZero() {
		text += ", until " + g.Expires.Local().Format(time.RFC3339)
	}
	text += fmt.Sprintf(", strength %s", g.Strength)
	program := slices.ContainsFunc(g.Bindings, func(b grant.Binding) bool { return IsOfProgram(n, b) })
	compute := ofCompute(g, n.Policy, program)
	if g.Mode == grant.Limit && g.Strength == grant.StrengthNone {
		compute = unenforced(compute, program)
	}
	text += compute
	if g.Mode == grant.Limit && g.Strength == grant.StrengthLibrary && len(g.Bindings) == 0 {
		text += "; a container that is privileged or has CAP_SYS_ADMIN, or whose image has no C library, " +
			"has strength none, and `gpuledger grants` says why"
	}
	if g.Mode == grant.MPS && n.Daemon() == 0 {
		text += "; gpuledgerd does not run, and until it does no container starts with it (mps-not-ready)"
	}
	return text
}

// unenforced says what strength none means, with what ofCompute says.
func unenforced(compute string, program bool) string {
	const of, doctor, mps = ": the ledger counts ", "`gpuledger doctor` says why", "mode mps enforces compute"
	switch {
	case compute == onlyCounted && program:
		return of + "memory and compute, and nothing enforces them on the program (" + mps + ")"
	case compute == onlyCounted:
		return of + "memory and compute, and nothing enforces them (" + doctor + "; " + mps + ")"
	case program:
		return of + "the memory, and nothing enforces it on the program" + compute
	}
	return of + "the memory, and nothing enforces it (" + doctor + ")" + compute
}

const (
	byMPS       = "(mode mps enforces it)"
	onlyCounted = "; the compute is counted and not enforced " + byMPS
)

// ofCompute says what holds a container of mode limit to its share of compute.
func ofCompute(g grant.Grant, p grant.Policy, program bool) string {
	switch {
	case g.Mode != grant.Limit || g.Compute == 0:
		return ""
	case g.ComputeStrength == grant.StrengthLibrary:
		return "; the compute has strength library, experimental: the shim throttles launches " + byMPS
	case admission.ThrottlePercent(g, p) > 0 && len(g.Bindings) > 0 && !program:
		return "; the compute is not enforced on a container that runs already: it is throttled when it is " +
			"created anew " + byMPS
	}
	return onlyCounted
}

// Owner says who may use a grant, and to which user of the node it belongs.
func Owner(g grant.Grant) string {
	if g.User == 0 {
		return string(g.Owner)
	}
	return string(g.Owner) + " of " + users.Name(g.User)
}

// Tied says after a word who may use a grant; nothing of one without ties.
func Tied(g grant.Grant, after string) string {
	if len(g.For) == 0 {
		return ""
	}
	names := make([]string, len(g.For))
	for i, t := range g.For {
		names[i] = string(t)
	}
	return after + strings.Join(names, ", ")
}
