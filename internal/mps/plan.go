package mps

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// want is an MPS daemon that grants need.
type want struct {
	uuids      []string // by index
	limits     map[string]grant.Bytes
	threads    int
	containers []boundContainer
}

// wants returns the daemons that grants need, by name. The defaults of a daemon bound every client,
// and a client's own settings can only lower them. So a daemon has the limits of its largest grant.
func wants(grants []grant.Grant) map[string]want {
	all := map[string]want{}
	for _, g := range grants {
		if g.Mode != grant.MPS {
			continue
		}
		name := grant.MPSName(g.UUIDs())
		w, found := all[name]
		if !found {
			w = want{uuids: g.UUIDs(), limits: map[string]grant.Bytes{}}
		}
		for _, s := range g.GPUs {
			w.limits[s.UUID] = max(w.limits[s.UUID], s.Memory)
		}
		w.threads = max(w.threads, cmp.Or(g.Compute, 100))
		for _, b := range g.Bindings {
			w.containers = append(w.containers, boundContainer{b.Container, b.Creator, b.Reserved})
		}
		all[name] = w
	}
	return all
}

// possible returns the grants that containers wait for a daemon for, without those of which a GPU
// has come into another mode since, or to a daemon of other GPUs.
func possible(awaited, grants []grant.Grant) []grant.Grant {
	return slices.DeleteFunc(awaited, func(a grant.Grant) bool {
		name := grant.MPSName(a.UUIDs())
		return slices.ContainsFunc(grants, func(g grant.Grant) bool {
			served := g.Mode == grant.MPS && grant.MPSName(g.UUIDs()) == name
			return !served && slices.ContainsFunc(a.GPUs, func(s grant.Share) bool {
				return g.Has(s.UUID)
			})
		})
	})
}

// facts are what a pass knows of one daemon before it acts.
type facts struct {
	name       string
	gpus       []string // as its state file says
	runs       bool
	toldToEnd  time.Time // for the first time; zero: it was not
	toldAgain  time.Time // for the last time
	askedAgain time.Time // it did not answer, and is not asked before
}

// action is what a pass does about one daemon.
type action string

const (
	keep           action = "keep"             // an entry of the ledger that cannot be read may need it
	serve          action = "serve"            // set its limits, and check that it serves its grants
	reportNotReady action = "report-not-ready" // it has grants, and did not answer
	dismiss        action = "dismiss"          // tell it to end
	awaitEnd       action = "await-end"        // it was told to end a moment ago
	reportNotEnded action = "report-not-ended" // it was told to end again a moment ago
	reportSilent   action = "report-silent"    // it has no grants, and did not answer
	start          action = "start"
	remove         action = "remove" // remove its directory
)

// step is an action on one daemon.
type step struct {
	name   string
	action action
	after  []string // of start: the daemons with one of its GPUs; none of them may run
}

// endTimeout is how long a daemon that was told to end may take. Then it is told again: NVIDIA's
// program may not have reached it, and have said so in words that are not among errorWords.
const endTimeout = 10 * time.Second

// plan says what a pass does. The daemons without grants come first, because they may have the GPUs
// of others. Steps are sorted by name otherwise.
func plan(all []facts, wanted map[string]want, damaged bool, now time.Time) []step {
	steps := make([]step, 0, len(all))
	for _, f := range all {
		w, isWanted := wanted[f.name]
		s := step{name: f.name, action: actionFor(f, isWanted, damaged, now)}
		if s.action == start {
			s.after = overlapping(f.name, w.uuids, all, wanted)
		}
		steps = append(steps, s)
	}
	rank := func(s step) int {
		if _, isWanted := wanted[s.name]; isWanted {
			return 1
		}
		return 0
	}
	slices.SortFunc(steps, func(a, b step) int {
		return cmp.Or(rank(a)-rank(b), cmp.Compare(a.name, b.name))
	})
	return steps
}

func actionFor(f facts, wanted, damaged bool, now time.Time) action {
	silent := now.Before(f.askedAgain)
	switch {
	case !wanted && damaged:
		return keep
	case !f.runs && wanted:
		return start
	case !f.runs:
		return remove
	case wanted && silent:
		return reportNotReady
	case wanted:
		return serve
	case !f.toldToEnd.IsZero() && now.Sub(f.toldAgain) < endTimeout:
		if f.toldAgain.After(f.toldToEnd) {
			return reportNotEnded
		}
		return awaitEnd
	case silent:
		return reportSilent
	}
	return dismiss
}

// overlapping lists the other daemons that have one of the GPUs, or will have it, or may have it:
// one that runs and whose state could not be written or read has no GPUs in its facts.
func overlapping(name string, uuids []string, all []facts, wanted map[string]want) (names []string) {
	for _, f := range all {
		has := func(uuid string) bool {
			return slices.Contains(f.gpus, uuid) || slices.Contains(wanted[f.name].uuids, uuid)
		}
		mayHave := f.runs && len(f.gpus) == 0 && len(wanted[f.name].uuids) == 0
		if f.name != name && (mayHave || slices.ContainsFunc(uuids, has)) {
			names = append(names, f.name)
		}
	}
	slices.Sort(names)
	return names
}
