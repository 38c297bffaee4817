package admission

import (
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/order"
)

// finding is a reason to refuse a container.
type finding struct {
	grant.Detail
	message string // what follows the container's name; "": the sentence of the code says it
	hint    string
	onNode  bool // the node is the reason: message is a whole sentence that does not name the container
	late    bool // it may be over in a moment (grant.Verdict.Late)
}

// findings collects reasons to refuse a container, in the order in which they are found. Each check
// returns those that it finds. Vectors and values are a tenant's words. They reach terminals and
// logs, so they are made printable here.
type findings []finding

// add adds a reason that the sentence of its code explains.
func (f *findings) add(code grant.Code, vector, value string) {
	f.explain(code, vector, value, "", "")
}

// explain adds a reason with a message of its own. The container's name is put before it.
func (f *findings) explain(code grant.Code, vector, value, message, hint string) {
	detail := grant.Detail{Vector: grant.Printable(vector), Value: grant.Printable(value), Code: code}
	*f = append(*f, finding{Detail: detail, message: message, hint: hint})
}

// onNode adds a reason that is not about the container.
func (f *findings) onNode(code grant.Code, message, hint string) {
	detail := grant.Detail{Vector: "node", Value: message, Code: code}
	*f = append(*f, finding{Detail: detail, message: message, hint: hint, onNode: true})
}

// text returns what the tenant reads about a finding, and what to do. g is the container's grant,
// or nil.
func (f *finding) text(c grant.Container, g *grant.Grant) (message, hint string) {
	switch {
	case f.onNode:
		return f.message, f.hint
	case f.message != "":
		return nameOf(c) + " " + f.message, f.hint
	}
	message, hint = sentenceOf(f.Detail, g)
	return nameOf(c) + " " + message, hint
}

// refuse makes the findings a verdict. All of them are listed, in the order of the codes, and the
// first one gives the text. The problems of the node count as findings, too.
func refuse(q *question, resolved resolution, found findings) grant.Verdict {
	for _, p := range q.view.Problems {
		found.onNode(p.Code, p.Message, p.Hint)
	}
	order.Stable(found, func(a, b finding) int { return a.Code.Rank() - b.Code.Rank() })
	first := &found[0]
	v := grant.Verdict{Kind: grant.Refused, Code: first.Code, Grant: resolved.grant,
		Strength: grant.StrengthNone, Recorded: resolved.recorded}
	v.Message, v.Hint = first.text(q.request.Container, resolved.grant)
	v.Late = slices.ContainsFunc(found, func(f finding) bool { return f.late && f.Code == first.Code })
	v.Details = make([]grant.Detail, len(found))
	for i := range found {
		v.Details[i] = found[i].Detail
	}
	return v
}
