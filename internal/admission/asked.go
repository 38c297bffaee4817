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
	hintAsks = "ask for what this node allows, or have it granted (`gpuledger grant`); " +
		"the administrator sets what containers may ask for in [ask] (" + grant.Docs + "asking.md)"
	hintAsked = "ask for less, or wait until a grant ends; " +
		"the administrator sees who holds what with `gpuledger inspect --details`"
	// for a container that names GPUs to its engine, and no size
	hintWhole = "say how much: GPULEDGER_MEMORY=4GiB in its environment, with all GPUs (" + grant.Docs +
		"asking.md#whole-gpus)"
	// for a container that asks on a node or under an engine where containers may not
	hintNoAsks = "have it granted (`gpuledger grant`) and present the reference by gpuledger.dev/grant or " +
		"GPULEDGER_GRANT (" + requesting + "), or have the administrator let this engine's " +
		"containers ask (" + grant.Docs + "asking.md)"
)

// MayAsk reports whether the policy makes a grant of what the container asks for.
func MayAsk(r grant.Request, p grant.Policy) bool {
	return !r.Sandbox && slices.Contains(p.Asks.Engines, r.Container.Engine) &&
		slices.ContainsFunc(r.Allocations, func(a grant.Allocation) bool { return a.Asks && a.Own })
}

// allOf are all GPUs, in the words of engines: of those that the container has, or asks for.
const allOf = "all"

// wholeOf makes an ask without a size that names GPUs to the engine one for all of each.
func wholeOf(ask *Ask, q *question) {
	i := slices.IndexFunc(q.request.Allocations, isNamed)
	if i < 0 || ask.Source != grant.Asked || ask.Memory != 0 {
		return
	}
	if ask.Names == nil && ask.GPUs == 0 && slices.Contains(q.request.Allocations[i].GPUs, allOf) {
		for _, gpu := range q.inventory.GPUs {
			ask.Names = append(ask.Names, gpu.UUID)
		}
	}
	isPart := func(name string) bool { d, _ := q.inventory.Device(name); return d.MIG != nil }
	switch {
	case ask.Mode != "":
	case len(ask.Names) > 0 && !slices.ContainsFunc(ask.Names, func(n string) bool { return !isPart(n) }):
		ask.Mode = grant.MIG
	default:
		ask.Mode = grant.Exclusive
	}
}

func isNamed(a grant.Allocation) bool { return a.Named }

// checkAsked finds what the policy does not let a container ask for.
func checkAsked(q *question, ask Ask) (found findings) {
	if ask.Source != grant.Asked {
		return nil
	}
	may := q.policy.Asks
	refuse := func(asked, limit string) { found.notAllowed(q, asked, limit) }
	switch n := ask.count(); {
	case !slices.Contains(may.Modes, ask.Mode):
		asked := "mode " + string(ask.Mode)
		if ask.Mode == grant.Exclusive && slices.ContainsFunc(q.request.Allocations, isNamed) {
			asked = "whole GPUs"
		}
		refuse(asked, fmt.Sprintf("%v", may.Modes))
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
	source, hint := allocationSource(q), hintAsks
	if isNamed(allocationBy(q)) {
		hint = hintWhole
	}
	f.explain(grant.AskNotAllowed, source, asked, "asks for "+asked+" by "+vectorName(source)+
		", and on this node a container may ask for "+limit, hint)
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
// and who has the rest: where containers may ask, their users share the node knowingly. Who has it
// is in the hint, which only the container's user reads: the message is recorded, and shown on the
// status page, whose readers may not see labels.
func (f *findings) notGranted(q *question, source string, err error) {
	var refusal *grant.Refusal
	var unknown *grant.NotFoundError
	message := strings.TrimPrefix(err.Error(), "cannot grant ")
	switch {
	case errors.As(err, &refusal) && refusal.Code == grant.ConfigInvalid:
		f.onNode(refusal.Code, refusal.Message, refusal.Hint)
	case refusal != nil:
		message, says := strings.CutPrefix(refusal.Message, "cannot grant ")
		if !says || refusal.Code == grant.MPSNotReady { // it does not say what is asked for
			message = "a share of a GPU: " + refusal.Message
		}
		hint, held := refusal.Hint, holders(q.view.Whole.Grants, q.view.Now)
		switch {
		case hint == hintNever:
			hint = hintNeverAsked
		case hint == hintMode:
			hint = held + hintMode
		case strings.HasPrefix(hint, hintHeld):
			hint = held + hintAsked
		}
		f.explain(refusal.Code, source, message, "asks by "+vectorName(source)+" for "+message, hint)
	case errors.As(err, &unknown):
		f.explain(grant.AnnotationMismatch, source, message,
			"asks by "+vectorName(source)+" for a GPU that is not there: "+message, "correct it")
	default:
		f.explain(grant.AnnotationMalformed, source, message,
			"asks by "+vectorName(source)+" for what can be no grant: "+message, "correct it")
	}
}

// maxHolders is how many grants a hint lists.
const maxHolders = 4

// holders says which grants have how much, and until when if that is known. It names them by their
// labels, which are other users' words (notGranted says why that is allowed).
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
	return "held: " + strings.Join(list, ", ") + "; "
}
