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

// create admits a container that its runtime has made, and gives it what its spec lacks.
func (c *call) create() error {
	state, err := c.state()
	if err != nil {
		return err
	}
	r, unknown := c.runtime(state.ID)
	if unknown == nil {
		unknown = r.creates(state.ID)
	}
	container := grant.Container{Engine: c.engine(), RuntimeRoot: r.root, ID: state.ID, Bundle: filepath.Clean(state.Bundle)}
	r.Bundle = container.Bundle // as the state has it: absolute
	config, err := host.ReadFile(r.ConfigPath(), request.MaxSpec)
	if odd := r.Ambiguous(r.program); odd != nil {
		err = odd
	} else if !filepath.IsAbs(r.ConfigPath()) {
		err = errors.New("--config is relative to where the runtime was, and it is elsewhere now")
	}
	asked := node.Create{Caller: request.Caller{Container: container, CgroupsOff: r.CgroupsOff}, Config: config, Unread: err,
		Live: &node.Live{Creators: r.ancestors, Unknown: unknown}}
	d := c.node.Admit(asked)
	failpoint.Hit("hook/admitted")
	if refusal := d.Refusal(); refusal != nil && d.Mode == "" {
		return refusal
	}
	if d.Config == nil {
		return nil
	}
	refusal := c.inject(asked, d, state.PID, r)
	if refusal == nil {
		return nil
	}
	if d.Bound {
		_ = c.node.Unbind(container) // dead with the runtime in any case
	}
	c.node.Fails(asked, d, refusal)
	if c.node.Mode() != grant.Enforce {
		return nil // it starts with less than it was granted, and nothing else
	}
	return refusal
}

// limit has the driver limit a container that gpuledger-runtime has admitted, before anything in it runs.
func (c *call) limit() error {
	state, err := c.state()
	if err != nil {
		return err
	}
	r, err := c.runtime(state.ID)
	if err != nil {
		return err
	}
	refusal := c.node.Drive(r.root, state.ID, state.PID)
	if refusal == nil {
		return nil
	}
	container := grant.Container{Engine: c.engine(), RuntimeRoot: r.root, ID: state.ID, Bundle: filepath.Clean(state.Bundle)}
	c.node.Fails(node.Create{Caller: request.Caller{Container: container}}, node.Decision{}, refusal)
	if c.node.Mode() != grant.Enforce {
		c.node.Weaken(r.root, state.ID)
		return nil
	}
	return refusal
}

// inject makes of the live container what the edited spec would have made of it, and looks whether it has become that.
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
	found, err := inject.Into(inject.Target{Host: c.host, PID: pid, Parent: r.ancestors[0].PID, Rootfs: rootfs(spec, asked.Container.Bundle)}, change)
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
	return &grant.Refusal{Code: grant.InjectionImpossible, Message: "the container cannot be changed any more: " + err.Error(),
		Hint: "let the engine call gpuledger-runtime, or ask for the GPU by CDI (docs/hook.md)"}
}
