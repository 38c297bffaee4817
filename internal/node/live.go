package node

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
	"github.com/gpuledger/gpuledger/internal/request"
)

// Live is what a hook knows of the create that it is a part of: the real runtime holds the
// container's id and has made the container, but started nothing in it.
type Live struct {
	Creators []grant.Process // the runtime's process that makes the container, then those above it
	Unknown  error           // why they cannot be told; such a container gets no grant
}

// JudgeBeforeCreate decides as Admit does, for a step before the create, as Podman's precreate is:
// it edits or refuses, and binds nothing. What runs in the create itself decides again and binds.
func (n *Node) JudgeBeforeCreate(c Create) Decision {
	d := n.Explain(c)
	if d.Kind == grant.Admit && d.Limited {
		prepareLimits(n, c, &d)
	}
	recordOnly(n, &d)
	if d.Kind == grant.Refused {
		recordDecision(n, c.Container, d)
	}
	return d
}

// prepareLimits makes the files with a grant's limits: the real runtime mounts what the edits name
// before it calls the hook that binds. A grant that this create is to enter has no id yet, so its
// container is left as it is, and that hook injects.
func prepareLimits(n *Node, c Create, d *Decision) {
	if d.Grant.ID == "" {
		d.Config = nil
		return
	}
	err := n.Ledger.Update(func(tx *ledger.Tx) error {
		g, err := tx.Get(d.Grant.ID)
		if err != nil {
			return err
		}
		return limitfiles.Write(n.Policy, g)
	})
	if err != nil {
		pod := d.pod
		*d = *unlimitable(c.Container, err)
		d.pod = pod
	}
}

// Fails records that a container does not start, for this reason: it was admitted, or could not be
// judged.
func (n *Node) Fails(c Create, d Decision, refusal *grant.Refusal) {
	failed := Decision{Verdict: grant.Verdict{Kind: grant.Refused, Code: refusal.Code,
		Message: refusal.Message, Grant: d.Grant,
		Strength: grant.StrengthNone, Details: []grant.Detail{
			{Vector: "node", Value: refusal.Message, Code: refusal.Code}}},
		pod: cmp.Or(d.pod, podOf(c.Config, c.Container.Engine))}
	switch mode := n.Mode(); {
	case mode != grant.Enforce:
		failed.NotEnforced = mode
	case c.Running:
		failed.NotEnforced = grant.Observed
	}
	recordDecision(n, c.Container, failed)
}

// Verify looks at what was made of a live container with the eyes that judged its spec: at the
// nodes in its /dev and, where they can be read, at the rules of its device cgroup (nil: those of
// the edited spec). Whatever it reaches must be in the grant.
func (n *Node) Verify(c Create, d Decision, nodes []specs.LinuxDevice,
	rules []specs.LinuxDeviceCgroup) error {
	n = forOneCreate(n)
	f, refused := readFacts(n, Create{Caller: c.Caller, Config: d.Config, Live: c.Live})
	if refused != nil {
		return errors.New(refused.Message)
	}
	spec, err := request.Parse(d.Config)
	if err != nil {
		return err
	}
	if spec.Linux == nil {
		spec.Linux = &request.Linux{}
	}
	spec.Linux.Devices = nodes
	if rules != nil {
		spec.Linux.Resources = &request.Resources{Devices: rules}
	}
	if f.request, refused = f.find(spec, f.finder); refused != nil {
		return errors.New(refused.Message)
	}
	second := decide(readLedger(n, f))
	if second.Kind != d.Kind {
		return fmt.Errorf("the container as it is now would be judged %q (%s): %s", second.Kind,
			second.Code, second.Message)
	}
	left := slices.ContainsFunc(second.Removed, func(r grant.Removal) bool {
		return r.Kind == grant.RemoveDevice || r.Kind == grant.RemoveRule
	})
	if second.Narrow || left {
		return fmt.Errorf("the container as it is now still reaches what was taken away: %v", second.Removed)
	}
	return nil
}

// DeleteIn does what Delete does, for a caller that does not know the runtime's root, as Podman's
// poststop.
func (n *Node) DeleteIn(bundle, container string) {
	for _, root := range n.Ledger.Bindings.RootsOf(container, bundle) {
		n.Delete(root, container)
	}
}
