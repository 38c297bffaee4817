package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

const (
	hintAsks = "ask for less, or have it granted (`gpuledger grant`); " +
		"the administrator sets what containers may ask for in [ask] (" + grant.Docs + "asking.md)"
	hintAsked = "ask for less, or wait until one of them ends; " +
		"the administrator sees who holds what with `gpuledger inspect`"
	// for a container that asks on a node or under an engine where containers may not
	hintNoAsks = "have it granted (`gpuledger grant`) and present the reference by gpuledger.dev/grant (" +
		requesting + "), or have the administrator let this engine's containers ask (" + grant.Docs +
		"asking.md)"
)

// MayAsk reports whether the policy makes a grant of what the container asks for.
func MayAsk(r grant.Request, p grant.Policy) bool {
	return !r.Sandbox && slices.Contains(p.Asks.Engines, p.Engine) &&
		slices.ContainsFunc(r.Allocations, func(a grant.Allocation) bool { return a.Asks && a.Own })
}

// checkAsked finds what the policy does not let a container ask for.
func checkAsked(q *question, ask Ask) (found findings) {
	if ask.Source != grant.Asked {
		return nil
	}
	may := q.policy.Asks
	refuse := func(asked, limit string) { found.notAllowed(q, asked, limit) }
	switch n := ask.count(); {
	case !slices.Contains(may.Modes, ask.Mode):
		refuse("mode "+string(ask.Mode), fmt.Sprintf("%v", may.Modes))
	case n > may.MaxGPUs:
		refuse(fmt.Sprintf("%d GPUs", n), fmt.Sprintf("%d", may.MaxGPUs))
	case may.MaxMemory > 0 && (ask.Memory > grant.Bytes(may.MaxMemory) || ask.Mode == grant.Exclusive):
		asked := ask.Memory.String()
		if ask.Mode == grant.Exclusive {
			asked = "all memory of a GPU"
		}
		refuse(asked, grant.Bytes(may.MaxMemory).String())
	}
	return found
}

// notAllowed adds that the container asks for more than it may.
func (f *findings) notAllowed(q *question, asked, limit string) {
	source := allocationSource(q)
	f.explain(grant.AskNotAllowed, source, asked, "asks for "+asked+" by "+vectorName(source)+
		", and on this node a container may ask for "+limit, hintAsks)
}

// checkGiven finds that the container would have more memory than it may ask for. A MIG device is
// as large as it is, whatever was asked for.
func checkGiven(q *question, given grant.Grant) (found findings) {
	limit := grant.Bytes(q.policy.Asks.MaxMemory)
	if given.Source == grant.Asked && limit > 0 && given.Memory() > limit {
		found.notAllowed(q, "MIG devices of "+given.Memory().String(), limit.String())
	}
	return found
}

// notGranted adds that what the container asks for cannot be granted now, with what is free where
// and who has the rest: where containers may ask, their users share the node knowingly.
func (f *findings) notGranted(q *question, source string, err error) {
	var refusal *grant.Refusal
	var unknown *grant.NotFoundError
	message := strings.TrimPrefix(err.Error(), "cannot grant ")
	switch {
	case errors.As(err, &refusal):
		f.explain(refusal.Code, source, message,
			"asks by "+vectorName(source)+" for "+message+holders(q.view.Whole.Grants, q.view.Now), hintAsked)
	case errors.As(err, &unknown):
		f.explain(grant.AnnotationMismatch, source, message,
			"asks by "+vectorName(source)+" for a GPU that is not there: "+message, hintAsks)
	default:
		f.explain(grant.AnnotationMalformed, source, message,
			"asks by "+vectorName(source)+" for what can be no grant: "+message, "correct it")
	}
}

// maxHolders is how many grants a refusal lists.
const maxHolders = 4

// holders says who has how much, and until when if that is known.
func holders(grants []grant.Grant, now time.Time) string {
	var list []string
	for _, g := range grants {
		if !g.Live(now) {
			continue
		}
		if len(list) == maxHolders {
			list = append(list, "others")
			break
		}
		who := g.Label
		if who == "" {
			who = string(g.ID)
		}
		for i, s := range g.GPUs {
			if i > 0 {
				who += ","
			}
			who += " " + s.Label()
		}
		if !g.Expires.IsZero() {
			who += " until " + g.Expires.UTC().Format(time.RFC3339)
		}
		list = append(list, who)
	}
	if len(list) == 0 {
		return ""
	}
	return "; held: " + strings.Join(list, ", ")
}
