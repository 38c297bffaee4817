package admission

import (
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// pass lets the container start as it is. The verdict records what an administrator should know.
func pass(q *question, recorded ...string) grant.Verdict {
	recorded = append(recorded, notes(q)...)
	if q.request.Sandbox && len(q.request.Hits) > 0 {
		recorded = append(recorded, "a sandbox with a way to a GPU: "+q.request.Hits[0].Vector)
	}
	for _, d := range q.view.Damaged {
		if isOwnDamage(q, d) {
			recorded = append(recorded,
				"without the GPUs of its grant "+string(d.ID)+", whose entry in the ledger is damaged")
		}
	}
	if q.request.Container.Pod.Owner() != "" {
		for _, p := range q.view.Problems {
			if p.Code == grant.LedgerUnreadable {
				recorded = append(recorded, "without the GPUs that it may own: "+p.Message)
			}
		}
	}
	return grant.Verdict{Kind: grant.Pass, Recorded: recorded, Strength: grant.StrengthNone}
}

// notes returns the ways in which the container is equivalent to root on the node, and other facts
// for the audit log.
func notes(q *question) []string {
	var notes []string
	for _, way := range q.request.NodeRoot {
		notes = append(notes, "node-root by "+grant.Printable(way))
	}
	for _, note := range q.request.Noted {
		notes = append(notes, grant.Printable(note))
	}
	return notes
}

// closeRules lets the container start with its own device rules after one that denies all, whatever
// the policy says. Runtimes add the usual devices of a container to such a list.
func closeRules(q *question) grant.Verdict {
	v := pass(q, "device rules closed: "+countingHits(q)[0].Value)
	v.Narrow, v.Rules = true, q.request.Rules
	return v
}

const visibleDevices = "NVIDIA_VISIBLE_DEVICES"

// withoutGPUs returns the verdict that lets a container without a grant start without GPUs, if the
// policy hides or strips every GPU that it reaches. A container that names a grant wants to use it,
// so it is refused instead, and its user reads why.
func withoutGPUs(q *question) (v grant.Verdict, possible bool) {
	if q.request.Sandbox || len(q.request.References) > 0 || claimsGrant(q) {
		return grant.Verdict{}, false
	}
	hidden, stripped, narrow := false, false, false
	var removed removals
	for _, h := range q.request.Hits {
		switch {
		case q.policy.Rules.Ungranted == grant.Hide && isVariable(h):
			hidden = true
		case q.policy.Rules.Privileged == grant.Strip && h.Code == grant.PrivilegedGPU:
			stripped = true
			narrow = narrow || h.Cover == grant.CoverNarrow
		default:
			return grant.Verdict{}, false
		}
		removed.add(h.Removal)
	}
	v = pass(q)
	v.Removed, v.Narrow = removed.list, narrow
	if narrow { // all of the spec's rules are replaced
		v.Removed = slices.DeleteFunc(v.Removed,
			func(r grant.Removal) bool { return r.Kind == grant.RemoveRule })
	}
	if q.request.AllDevices {
		v.Rules = Confined(q.request.Devices)
	}
	if hidden {
		v.Edits.Env = []string{visibleDevices + "=void"}
		v.Recorded = append(v.Recorded, "GPUs hidden by policy")
	}
	if stripped {
		v.Recorded = append(v.Recorded, "GPUs stripped from a privileged container by policy")
	}
	return v, true
}

// isVariable reports whether a hit is a variable that injectors obey. The variable of an MPS client
// does not count: the directory that it names is mounted, and hiding the variable leaves the mount.
func isVariable(h grant.Hit) bool {
	return strings.HasPrefix(h.Vector, "env:") && h.Code != grant.GPUSocket
}
