package hook

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/inject"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/oci"
	"github.com/gpuledger/gpuledger/internal/request"
)

// state reads the container's state, which the runtime passes to the hook.
func (c *call) state() (State, error) {
	data, err := c.read()
	if err != nil {
		return State{}, fmt.Errorf("cannot read the container's state: %w", err)
	}
	return ParseState(data)
}

// readCreate returns the create that the hook belongs to, as far as it is known, and the pid of the
// container's first process. An error means that the state could not be read; nothing is known
// then.
func (c *call) readCreate() (a node.Create, r caller, pid int, err error) {
	state, err := c.state()
	if err != nil {
		return a, r, 0, err
	}
	r, unknown := c.runtime(state.ID)
	if unknown == nil {
		unknown = r.creates(state.ID)
	}
	r.Bundle = filepath.Clean(state.Bundle) // an absolute path, checked by ParseState
	a.Container = grant.Container{Engine: c.engine(), RuntimeRoot: r.root, ID: state.ID, Bundle: r.Bundle}
	a.CgroupsOff, a.Restored = r.CgroupsOff, r.Name == "restore"
	if a.Restored {
		a.RestoresRules = oci.RestoresRules(r.argv)
		// a version that cannot be read refuses it
		version, _ := host.VersionOf(c.path(os.Getppid(), "exe"), 10*time.Second)
		a.RestoredOutside = r.RestoredOutside(version, r.argv, host.DevicesOnV1(c.host))
	}
	a.Timeout = node.MaxTimeout
	a.Live = &node.Live{Creators: r.ancestors, Unknown: unknown}
	a.Config, a.Unread = host.ReadFile(r.ConfigPath(), request.MaxSpec)
	if odd := r.Ambiguous(r.program); odd != nil {
		a.Unread = odd
	} else if !filepath.IsAbs(r.ConfigPath()) {
		a.Unread = errors.New("--config is relative to where the runtime was, and it is elsewhere now")
	}
	return a, r, state.PID, nil
}

// create admits a container that its runtime has made, and adds what its spec lacks.
func (c *call) create() error {
	asked, r, pid, err := c.readCreate()
	if err != nil {
		return c.enforced(err)
	}
	d := c.node.Admit(asked)
	failpoint.Hit("hook/admitted")
	if refusal := d.Refusal(); refusal != nil && d.NotEnforced == "" {
		return refusal
	}
	if d.Config == nil {
		return nil
	}
	changed, refusal := c.inject(asked, d, pid, r)
	if refusal == nil {
		return nil
	}
	// If not enforced, it starts. It keeps the binding where something of its grant may be open.
	if d.Bound && !(changed && c.node.Mode() != grant.Enforce) {
		_ = c.node.Unbind(asked.Container) // it would end with the runtime
	}
	c.node.Fails(asked, d, refusal)
	return c.enforced(refusal)
}

// enforced returns the error if the policy is enforced, otherwise nil: then containers start in
// spite of errors.
func (c *call) enforced(err error) error {
	if c.node.Mode() != grant.Enforce {
		return nil
	}
	return err
}

// limit makes the driver limit a container that gpuledger-runtime has admitted, before a process of
// the container runs.
func (c *call) limit() error {
	asked, _, pid, err := c.readCreate()
	if err != nil {
		return c.enforced(err)
	}
	refusal := c.node.SetDriverLimit(asked, pid)
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

// inject changes the live container into what the edited spec would have made, and verifies the
// result. If it fails, changed says whether it has begun to.
func (c *call) inject(asked node.Create, d node.Decision, pid int, r caller) (changed bool,
	refusal *grant.Refusal) {
	spec, err := request.Parse(asked.Config)
	if err != nil {
		return false, impossible(err)
	}
	target := inject.Target{Host: c.host, PID: pid, Rootfs: rootfs(spec, asked.Container.Bundle),
		Systemd: r.Systemd}
	if len(r.ancestors) > 0 { // else asked.Live.Unknown says why they are not known
		target.Parent = r.ancestors[0].PID
	}
	if bytes.Equal(d.Config, asked.Config) {
		list(asked, d, target)
		return false, nil
	}
	change, err := changes(spec, d, c.node.Policy.Rules.DeviceEnv, node.ServerLimitsOf(c.node, d.Grant))
	if err == nil && !change.Empty() {
		err = asked.Live.Unknown
	}
	if err == nil && !change.Empty() {
		err = possible(spec, change, r)
	}
	if err == nil && change.Empty() {
		list(asked, d, target)
	}
	if err != nil || change.Empty() {
		return false, impossible(err)
	}
	found, err := inject.Into(target, change)
	if err != nil {
		return true, impossible(err)
	}
	if len(change.Allow) == 0 { // the spec opened the devices
		list(asked, d, target)
	}
	if found.Nodes == nil && spec.Linux != nil { // /dev is unchanged
		found.Nodes = spec.Linux.Devices
	}
	return true, impossible(c.node.Verify(asked, d, found.Nodes, found.Rules))
}

// list has systemd list the nodes that the spec has already, by the wrapper, CDI or NRI. If that
// fails, the container has what the runtime gave it, until systemd reloads.
func list(asked node.Create, d node.Decision, target inject.Target) {
	if rules := nodeRules(d.Edits); len(rules) > 0 && asked.Live.Unknown == nil {
		_ = inject.List(target, rules)
	}
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

// impossible returns the refusal of a container that cannot get what it was granted.
func impossible(err error) *grant.Refusal {
	if err == nil {
		return nil
	}
	return &grant.Refusal{Code: grant.InjectionImpossible,
		Message: "the container cannot be changed any more: " + err.Error(),
		Hint: "let the engine call gpuledger-runtime, or ask for the GPU by CDI (" +
			grant.Docs + "hook.md)"}
}
