package page

import (
	"slices"
	"strconv"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// word is a word of the page with its meaning.
type word struct{ Kind, Word, Meaning string }

// words lists the words that columns of the page have, in the order in which the page explains
// them.
var words = []word{
	{"state", string(grant.Free), "no container uses the grant; what it holds stays reserved for it"},
	{"state", string(grant.Bound), "a container uses the grant"},
	{"state", string(grant.Draining),
		"the grant was released or has expired, but its container still runs; " +
			"what it holds becomes free when the container ends"},
	{"state", string(grant.Unknown), "gpuledgerd cannot see whether the container still runs, so the " +
		"grant counts " +
		"as used; run gpuledgerd in the node's own pid namespace"},
	{"mode", string(grant.Exclusive), "one grant has the whole GPU"},
	{"mode", string(grant.Timeslice),
		"grants share the GPU in turns; their memory is counted and not limited"},
	{"mode", string(grant.Limit), "grants share the GPU, each with a limit of memory"},
	{"mode", string(grant.MPS), "grants share the GPU through NVIDIA's MPS server"},
	{"mode", string(grant.MIG), "each grant has partitions of the GPU (MIG devices)"},
	{"strength", string(grant.StrengthHardware), "the GPU itself enforces the grant's amount (MIG)"},
	{"strength", string(grant.StrengthDriver), "the driver enforces the memory"},
	{"strength", string(grant.StrengthServer), "NVIDIA's MPS server enforces memory and compute"},
	{"strength", string(grant.StrengthLibrary),
		"a library in the container enforces the memory, and gpuledgerd watches it"},
	{"strength", string(grant.StrengthNone),
		"the amount is counted and nothing enforces it, as for a whole GPU; " +
			"which GPUs the container reaches is enforced all the same"},
}

// meaning returns what a word means; "" for one that the page does not know.
func meaning(kind, text string) string {
	for _, w := range words {
		if w.Kind == kind && w.Word == text {
			return w.Meaning
		}
	}
	return ""
}

// wordsOf returns the words that the GPUs' tables have, so that the page explains no others.
func wordsOf(gpus []gpu) (used []word) {
	for _, w := range words {
		if slices.ContainsFunc(gpus, func(g gpu) bool { return g.has(w) }) {
			used = append(used, w)
		}
	}
	return used
}

func (g gpu) has(w word) bool {
	return w.Kind == "mode" && string(g.Mode) == w.Word || slices.ContainsFunc(g.Grants, func(r row) bool {
		return w.Word == map[string]string{"state": r.State, "mode": r.Mode, "strength": r.Strength}[w.Kind]
	})
}

// policyText says what happens to a container that is refused.
func policyText(mode grant.RulesMode) string {
	switch mode {
	case grant.Report:
		return "nothing is refused: a container starts without a grant, and the refusal is only recorded. " +
			`policy.mode = "enforce" in the configuration changes that.`
	case grant.Disabled:
		return "gpuledger is disabled: every container starts, with or without a grant. " +
			"`gpuledger enable` ends that."
	case grant.Enforce:
		return "a container that reaches a GPU without a grant for it does not start."
	}
	return ""
}

// size writes an amount of memory in GiB, as `gpuledger inspect` does. An amount that is not 0 is
// never written as 0.
func size(b grant.Bytes) string {
	text := strconv.FormatFloat(float64(b)/float64(grant.GiB), 'f', 1, 64)
	if b > 0 && text == "0.0" {
		text = "<0.1"
	}
	return text + " GiB"
}

// watts writes milliwatts; "" if they are not known.
func watts(milliwatts int) string {
	if milliwatts == 0 {
		return ""
	}
	return strconv.Itoa((milliwatts+500)/1000) + " W"
}

// celsius writes a temperature; "" if it is not known.
func celsius(degrees int) string {
	if degrees == 0 {
		return ""
	}
	return strconv.Itoa(degrees) + " °C"
}
