package node

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/edit"
	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/request"
)

// Create is a container about to be created.
type Create struct {
	request.Caller
	Config []byte // its config.json
}

// Decision is a verdict in force.
type Decision struct {
	grant.Verdict
	Config   []byte // the config.json to run instead of the given one; nil: run it as it is
	Reported bool   // the verdict is a refusal that policy only records: run the container as it is
	Bound    bool   // the grant is bound to the container; Unbind if it does not come to be

	pod grant.Identity // who asked, where the engine vouches for it
}

// Admit decides about a create and, where it admits, binds the grant to the container. It never fails: what goes wrong
// is a refusal, or for a container that reaches no GPU nothing at all.
func (n *Node) Admit(c Create) Decision {
	d := n.admit(c)
	if d.Kind == grant.Refused && n.Policy.Rules.Mode == grant.Report && n.Broken == nil {
		d.Reported, d.Config = true, nil
	}
	n.audit(c.Container, d.pod, d)
	return d
}

// Explain is what Admit would say, without doing any of it.
func (n *Node) Explain(c Create) Decision {
	r, refused := n.find(c)
	if refused != nil {
		return *refused
	}
	var d Decision
	n.look(r, func(v grant.View) { d = n.decide(c, r, v) })
	return d
}

func (n *Node) admit(c Create) Decision {
	r, refused := n.find(c)
	if refused != nil {
		return *refused
	}
	var d Decision
	n.look(r, func(v grant.View) { d = n.decide(c, r, v) })
	if d.Kind != grant.Admit {
		return d
	}
	return n.bind(c, r)
}

// find reads the spec. What cannot be read could be anything, so it is refused; the real runtime would refuse it too.
func (n *Node) find(c Create) (grant.Request, *Decision) {
	spec, err := request.Parse(c.Config)
	if err != nil {
		return grant.Request{}, refusal(grant.SpecInvalid, "cannot read config.json of container %q: %v", c.Container.ID, err)
	}
	finder, err := n.finder()
	if err != nil {
		return grant.Request{}, refusal(grant.Internal, "%v", err)
	}
	r, err := request.Find(spec, c.Caller, finder)
	if err != nil {
		return grant.Request{}, refusal(grant.Internal, "%v", err)
	}
	return r, nil
}

func refusal(code grant.Code, format string, args ...any) *Decision {
	v := grant.Verdict{Kind: grant.Refused, Code: code, Message: fmt.Sprintf(format, args...), Strength: grant.StrengthNone, Hint: "see docs/refusals.md"}
	v.Details = []grant.Detail{{Vector: "node", Value: v.Message, Code: code}}
	return &Decision{Verdict: v}
}

// look gives fn the ledger as far as the request needs it, without waiting for anybody.
func (n *Node) look(r grant.Request, fn func(grant.View)) {
	_ = n.Ledger.View(func(tx *ledger.Tx) error {
		fn(n.view(tx, r))
		return nil
	})
}

// view reads the grants that the container owns or names. What cannot be read is a problem of the view: it stops only
// containers that want a GPU.
func (n *Node) view(tx *ledger.Tx, r grant.Request) grant.View {
	v := grant.View{Now: n.Host.Now()}
	if n.Broken != nil {
		v.Problems = append(v.Problems, grant.Problem{Code: grant.ConfigInvalid, Message: n.Broken.Error(),
			Hint: "correct the configuration; containers without GPUs start meanwhile"})
	}
	add := func(g grant.Grant, err error) {
		var damaged *ledger.DamagedError
		switch {
		case err == nil && !slices.ContainsFunc(v.Grants, func(o grant.Grant) bool { return o.ID == g.ID }):
			v.Grants = append(v.Grants, g)
		case errors.As(err, &damaged):
			v.Damaged = append(v.Damaged, damaged.Damage)
		case err != nil && !errors.Is(err, ledger.ErrNotFound):
			v.Problems = append(v.Problems, grant.Problem{Code: grant.LedgerUnreadable, Message: err.Error(), Hint: "an administrator finds the reason with `gpuledger check`"})
		}
	}
	if owner := r.Container.Pod.Owner(); owner != "" {
		add(tx.ByOwner(owner))
	}
	for _, m := range r.References {
		if m.Malformed == "" {
			add(tx.Get(m.ID))
		}
	}
	return v
}

// decide judges, and makes the edited config.json where the verdict has edits.
func (n *Node) decide(c Create, r grant.Request, v grant.View) Decision {
	var inv grant.Inventory
	if admission.Asks(r, v) {
		var problem *grant.Problem
		if inv, problem = n.Inventory(); problem != nil {
			v.Problems = append(v.Problems, *problem)
		}
	}
	d := Decision{Verdict: admission.Decide(r, v, inv, n.Policy), pod: r.Container.Pod}
	if !d.Touches() {
		return d
	}
	config, err := n.edited(c, d.Verdict, v, inv)
	if err != nil {
		return *refusal(grant.Internal, "internal error: %v", err)
	}
	d.Config = config
	return d
}

// edited applies a verdict and looks at the result with the same eyes as at the original: whatever it still reaches must
// be in the grant, and deciding again must change nothing.
func (n *Node) edited(c Create, v grant.Verdict, view grant.View, inv grant.Inventory) ([]byte, error) {
	config, err := edit.OCI(c.Config, v)
	if err != nil {
		return nil, err
	}
	again := c
	again.Config = config
	r, refused := n.find(again)
	if refused != nil {
		return nil, errors.New(refused.Message)
	}
	second := admission.Decide(r, view, inv, n.Policy)
	switch {
	case second.Kind != v.Kind:
		return nil, fmt.Errorf("the edited spec would be judged %q (%s): %s", second.Kind, second.Code, second.Message)
	case second.Narrow || len(second.Removed) > 0 && v.Kind == grant.Pass:
		return nil, fmt.Errorf("the edited spec still reaches what was taken away: %v", second.Removed)
	}
	fixed, err := edit.OCI(config, second)
	if err != nil || string(fixed) != string(config) {
		return nil, fmt.Errorf("editing the edited spec changes it again (%v)", err)
	}
	return config, nil
}

// bind decides again with the ledger locked, so that of two containers with one grant one is refused, and records the
// binding before anything is done with it.
func (n *Node) bind(c Create, r grant.Request) (d Decision) {
	if n.Ledger.ContainerLife(c.Container.RuntimeRoot, c.Container.ID) != grant.Dead {
		// The id is taken by a container that runs. It is left to the real runtime to say so; nothing is bound, because
		// the binding would live with that container.
		return Decision{Verdict: grant.Verdict{Kind: grant.Pass, Recorded: []string{"the id is in use; the real runtime refuses it"}, Strength: grant.StrengthNone}}
	}
	err := n.Ledger.Update(func(tx *ledger.Tx) error {
		if d = n.decide(c, r, n.view(tx, r)); d.Kind != grant.Admit {
			return nil
		}
		binding, err := n.binding(c, d.Grant.ID)
		if err != nil {
			return err
		}
		if err := tx.Bind(binding); err != nil {
			return err
		}
		failpoint.Hit("node/bound")
		d.Bound = true
		return nil
	})
	if err != nil {
		return *refusal(grant.LedgerUnreadable, "cannot bind the grant of container %q: %v", c.Container.Name(), err)
	}
	return d
}

// binding describes this process, which becomes the real runtime by exec, as the container's creator.
func (n *Node) binding(c Create, id grant.ID) (grant.Binding, error) {
	self, err := n.Host.Self()
	if err != nil {
		return grant.Binding{}, err
	}
	ns, err := n.Host.PIDNamespace()
	if err != nil {
		return grant.Binding{}, err
	}
	boot, err := n.Host.BootID()
	if err != nil {
		return grant.Binding{}, err
	}
	return grant.Binding{Grant: id, RuntimeRoot: c.Container.RuntimeRoot, Container: c.Container.ID, Bundle: c.Container.Bundle,
		Creator: self, PIDNS: ns, BootID: boot, Created: n.Host.Now()}, nil
}

// Unbind takes a binding back whose container did not come to be.
func (n *Node) Unbind(c grant.Container) error {
	return n.Ledger.Update(func(tx *ledger.Tx) error { return tx.Unbind(c.RuntimeRoot, c.ID) })
}
