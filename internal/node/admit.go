package node

import (
	"fmt"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/request"
)

// Create is a container about to be created.
type Create struct {
	request.Caller
	Config []byte // its config.json
	Unread error  // why that could not be read
	Live   *Live  // in a hook: the real runtime has made the container already

	// Edit applies a verdict to the config.json; nil is edit.OCI. A *grant.Refusal from it is the
	// verdict then.
	Edit func(config []byte, v grant.Verdict) ([]byte, error)
	// Reserve says that the container's own create has yet to come, in another process: until then
	// this one holds the grant.
	Reserve bool

	// Hooked: the edits may bring a hook, which the runtime then calls. Restored: the container
	// comes from a checkpoint, and CRIU brings its cgroup back after the hooks, whatever stands in
	// the spec.
	Hooked, Restored bool

	// Timeout is how long Admit may try again for what comes in a moment (retry.go): a tie of a
	// claim's grant to the container's pod, or the daemon of a grant in mode mps. 0: it does not
	// wait.
	Timeout time.Duration

	// AnyRoot (JudgeCreated, Explain): the runtime's root is a guess, so a binding of this id is
	// the container's own whatever root it names. Running (JudgeCreated): the container has started
	// and is not stopped, so a refusal is only recorded.
	AnyRoot, Running bool
	// Reported (JudgeCreated) is the spec as the engine itself reports it, without the edits of
	// gpuledger-runtime; nil: Config is all that is known. What it asks for counts, too, so that
	// Config can add ways to a GPU and take none away.
	Reported []byte

	// inventory reads the snapshot where that is not the node's to read (ExplainBy); nil: it is.
	inventory func() (grant.Inventory, *grant.Problem)
}

// Decision is a verdict, and what was done about it.
type Decision struct {
	grant.Verdict
	Config []byte // the config.json to run instead of the given one; nil: run it as it is
	// NotEnforced is set if the verdict, a refusal or a pass that takes GPUs away, is only
	// recorded: to the mode that is the reason (report, disabled or observed). The container is to
	// run as it is. "": the verdict is in force.
	NotEnforced grant.RulesMode
	// this call has bound the grant to the container: Unbind if that does not come to be. A refusal
	// takes the binding back itself, and has this only where that has failed
	Bound bool
	Known bool // the wrapper bound the grant to this very container before

	// Of a live container with a device rule that opens more than it may: what is to be closed, and
	// what stands in place of a rule for more than that.
	Close, Others []grant.DeviceRule

	pod   grant.Identity // of the container, if the engine proves it
	began time.Time      // when the decision was asked for; zero if it is not measured
}

// Admit decides about a create and, where it admits, binds the grant to the container. It never
// fails: what goes wrong is a refusal, or for a container that reaches no GPU nothing at all.
func (n *Node) Admit(c Create) Decision {
	began := time.Now()
	d := admit(n, c)
	d.began = began
	recordOnly(n, &d)
	if !d.Bound && (d.Kind != grant.Refused || d.NotEnforced != "") {
		// A binding that a dead container of this id left would count as this container's.
		replaceDeadBinding(n, c.Container.RuntimeRoot, c.Container.ID)
	}
	if !d.Known { // the wrapper has recorded it
		recordDecision(n, c.Container, d)
	}
	return d
}

// recordOnly makes a decision one that is only recorded, where the policy is not enforced.
// Admissions go on, so that the ledger stays true; nothing is refused then, hidden or stripped.
func recordOnly(n *Node, d *Decision) {
	if d.Kind == grant.Admit || d.Kind == grant.Pass && !d.Touches() {
		return
	}
	if mode := n.Mode(); mode != grant.Enforce {
		d.NotEnforced, d.Config = mode, nil
	}
}

// Unjudged reports whether a container is to run as it would without gpuledger: nothing is
// enforced, or the policy exempts it, and the decision changes nothing of it.
func (n *Node) Unjudged(d Decision) bool {
	switch {
	case d.NotEnforced != "":
		return true
	case d.Kind != grant.Pass || d.Touches():
		return false
	}
	return admission.Exempt(d.pod, n.Policy) || n.Mode() != grant.Enforce
}

// Explain returns what Admit would decide, and does none of it.
func (n *Node) Explain(c Create) Decision {
	n = forOneCreate(n)
	f, refused := readFacts(n, c)
	if refused != nil {
		return *refused
	}
	d := explain(n, f)
	d.pod = f.pod()
	return d
}

func explain(n *Node, f *createFacts) Decision {
	d := planned(readLedger(n, f)).Decision
	exempt := admission.Exempt(f.pod(), n.Policy)
	if d.Kind == grant.Refused || d.Kind == grant.Pass && exempt {
		return d
	}
	if !exempt && sharesCgroup(n, f, false) || d.Kind == grant.Admit && f.inParent() {
		return *sharedCgroup(f)
	}
	if unit := takenSlice(f); unit != "" {
		return *outsideCgroup(f, unit)
	}
	return d
}

// admit decides about a create: it reads the facts, makes a plan of them and of the ledger, and
// commits the plan with the ledger locked.
func admit(n *Node, c Create) Decision {
	n = forOneCreate(n)
	f, refused := readFacts(n, c)
	if refused != nil {
		return *refused
	}
	d := withOwnCgroup(n, f, bindWithRetries(n, f))
	d.pod = f.pod()
	return d
}

// forOneCreate gives the node for one create: what is known of a binding after one look at all
// processes is not looked at again.
func forOneCreate(n *Node) *Node {
	own := *n
	own.Ledger = n.Ledger.ForOneCreate()
	return &own
}

// hintOf returns the hint of a refusal whose message says all there is to say here.
func hintOf(code grant.Code) string { return "see " + grant.Docs + "refusals.md#" + string(code) }

func refusal(code grant.Code, format string, args ...any) *Decision {
	v := grant.Verdict{Kind: grant.Refused, Code: code, Message: fmt.Sprintf(format, args...),
		Strength: grant.StrengthNone, Hint: hintOf(code)}
	v.Details = []grant.Detail{{Vector: "node", Value: v.Message, Code: code}}
	return &Decision{Verdict: v}
}
