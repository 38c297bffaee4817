package hook

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/inject"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
)

// state is the container's, as the runtime gives it.
func (c *call) state() (State, error) {
	data, err := c.read()
	if err != nil {
		return State{}, fmt.Errorf("cannot read the container's state: %w", err)
	}
	return ParseState(data)
}

// asked is the create that the hook is a part of, as far as it can be told, and the container's
// first process. An error is of the state alone: nothing is known then.
func (c *call) asked() (a node.Create, r caller, pid int, err error) {
	state, err := c.state()
	if err != nil {
		return a, r, 0, err
	}
	r, unknown := c.runtime(state.ID)
	if unknown == nil {
		unknown = r.creates(state.ID)
	}
	r.Bundle = filepath.Clean(state.Bundle) // absolute
	a.Container = grant.Container{Engine: c.engine(), RuntimeRoot: r.root, ID: state.ID, Bundle: r.Bundle}
	a.CgroupsOff, a.Restored = r.CgroupsOff, r.Name == "restore"
	a.Patience = node.LatePatience
	a.Live = &node.Live{Creators: r.ancestors, Unknown: unknown}
	a.Config, a.Unread = host.ReadFile(r.ConfigPath(), request.MaxSpec)
	if odd := r.Ambiguous(r.program); odd != nil {
		a.Unread = odd
	} else if !filepath.IsAbs(r.ConfigPath()) {
		a.Unread = errors.New("--config is relative to where the runtime was, and it is elsewhere now")
	}
	return a, r, state.PID, nil
}

// create admits a container that its runtime has made, and gives it what its spec lacks.
func (c *call) create() error {
	asked, r, pid, err := c.asked()
	if err != nil {
		return c.enforced(err)
	}
	d := c.node.Admit(asked)
	failpoint.Hit("hook/admitted")
	if refusal := d.Refusal(); refusal != nil && d.Mode == "" {
		return refusal
	}
	if d.Config == nil {
		return nil
	}
	refusal := c.inject(asked, d, pid, r)
	if refusal == nil {
		return nil
	}
	if d.Bound {
		_ = c.node.Unbind(asked.Container) // dead with the runtime in any case
	}
	c.node.Fails(asked, d, refusal)
	return c.enforced(refusal) // else it starts with less than it was granted, and nothing else
}

// enforced is an error where the policy is enforced, and else none: who wants containers to start
// all the same wants this one to.
func (c *call) enforced(err error) error {
	if c.node.Mode() != grant.Enforce {
		return nil
	}
	return err
}

// limit has the driver limit a container that gpuledger-runtime has admitted, before anything in it
// runs.
func (c *call) limit() error {
	asked, _, pid, err := c.asked()
	if err != nil {
		return c.enforced(err)
	}
	refusal := c.node.Drive(asked, pid)
	if refusal == nil {
		return nil
	}
	c.node.Fails(asked, node.Decision{}, refusal)
	if c.node.Mode() != grant.Enforce {
		c.node.Weaken(asked.Container)
		return nil
	}
	return refusal
}

// inject makes of the live container what the edited spec would have made of it, and looks whether
// it has become that.
func (c *call) inject(asked node.Create, d node.Decision, pid int, r caller) *grant.Refusal {
	if bytes.Equal(d.Config, asked.Config) { // the wrapper has edited it
		return nil
	}
	spec, err := request.Parse(asked.Config)
	if err != nil {
		return impossible(err)
	}
	change, err := changes(spec, d)
	if err == nil && !change.Empty() {
		err = asked.Live.Unknown
	}
	if err == nil && !change.Empty() {
		err = possible(spec, change, r)
	}
	if err != nil || change.Empty() {
		return impossible(err)
	}
	found, err := inject.Into(inject.Target{Host: c.host, PID: pid, Parent: r.ancestors[0].PID,
		Rootfs: rootfs(spec, asked.Container.Bundle)}, change)
	if err != nil {
		return impossible(err)
	}
	if found.Nodes == nil && spec.Linux != nil { // /dev was not touched
		found.Nodes = spec.Linux.Devices
	}
	return impossible(c.node.Verify(asked, d, found.Nodes, found.Rules))
}

func rootfs(spec request.Spec, bundle string) string {
	root := "rootfs"
	if spec.Root != nil {
		root = cmp.Or(spec.Root.Path, root)
	}
	if filepath.IsAbs(root) {
		return root
	}
	return filepath.Join(bundle, root)
}

// impossible is the refusal of a container that cannot be given what it was granted.
func impossible(err error) *grant.Refusal {
	if err == nil {
		return nil
	}
	return &grant.Refusal{Code: grant.InjectionImpossible,
		Message: "the container cannot be changed any more: " + err.Error(),
		Hint: "let the engine call gpuledger-runtime, or ask for the GPU by CDI (" +
			grant.Docs + "hook.md)"}
}
