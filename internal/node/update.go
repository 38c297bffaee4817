package node

import (
	"path/filepath"
	"slices"

	"github.com/gpuledger/gpuledger/internal/containers"
	"github.com/gpuledger/gpuledger/internal/edit"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/request"
)

// Update judges the resources of a runtime's update and gives what the real runtime shall read
// instead. Raw cgroup keys that overwrite the driver's limit or set no resource are refused. Device
// rules are refused where they open a GPU that the create did not open, and are taken out
// otherwise: runc ignores them, crun would put them in place of the granted ones, and containerd
// sends along with every update those of its own spec (docs/adr/0003).
func (n *Node) Update(c grant.Container, resources []byte) ([]byte, error) {
	u, err := request.ParseUpdate(resources)
	if err != nil {
		return nil, &grant.Refusal{Code: grant.SpecInvalid,
			Message: "cannot read the resources of the update: " + err.Error(),
			Hint:    hintOf(grant.SpecInvalid)}
	}
	if refused := refuseKeys(n, c, u); refused != nil {
		return nil, refused
	}
	if u.Devices == nil {
		return resources, nil
	}
	if err := refuseRules(n, c, u); err != nil {
		return nil, err
	}
	return edit.Without(resources, "devices")
}

// refuseKeys refuses raw cgroup keys: that of the driver's limit, those that move or end processes,
// and for a container with a grant those of unknown effect (docs/adr/0064).
func refuseKeys(n *Node, c grant.Container, u request.Update) error {
	code, key, doubtful := u.Unfit()
	switch {
	case code == grant.LimitUnenforceable:
		return &grant.Refusal{Code: code, Message: "the update sets " + grant.Printable(key) +
			", which belongs to the ledger", Hint: "change the grant with `gpuledger grant --update`"}
	case code != "" && n.Host.IsRoot(): // else no cgroup holds anything
		return &grant.Refusal{Code: code, Message: "the update sets " + grant.Printable(key) +
			", which is no resource: such a key can stop processes, or move them out of the cgroup whose " +
			"device rules and limit hold them",
			Hint: "leave the key out; use the runtime's pause, resume or kill to stop or end a container"}
	case doubtful != "" && n.Ledger.Bindings.Has(c.RuntimeRoot, c.ID):
		return &grant.Refusal{Code: grant.LimitUnenforceable, Message: "the update sets " +
			grant.Printable(doubtful) + ", and it is not known what that does to the container's grant",
			Hint: "leave the key out; a controller that is missing in gpuledger's list is a bug to report"}
	}
	return nil
}

// refuseRules refuses device rules that open more GPUs than the container was created with. In
// strip mode the engine's own spec of a privileged container is wider than what we made of it, and
// comes along with every update.
func refuseRules(n *Node, c grant.Container, u request.Update) error {
	created := createdSpec(n, c)
	if n.Policy.Rules.Privileged == grant.Strip || confined(created) {
		return nil
	}
	rule, wider, err := request.Widens(u.Devices, created, n.finder(n.Inventory))
	if err != nil || !wider {
		return err
	}
	return &grant.Refusal{Code: grant.GPUDeviceRule,
		Message: "the update would open GPU devices by the device rule " + rule,
		Hint:    "a container's GPUs are settled when it is created; leave the devices out of the update"}
}

// confined reports whether a spec's rules are those that we put in a privileged container's place:
// only they open every block device and not every character device. The engine's own are wider, and
// come along with every update.
func confined(spec request.Spec) bool {
	if spec.Linux == nil || spec.Linux.Resources == nil {
		return false
	}
	return slices.ContainsFunc(spec.Linux.Resources.Devices, func(r request.CgroupRule) bool {
		return r.Allow && r.Type == "b" && r.Major == nil && r.Minor == nil
	})
}

// createdSpec returns the spec that the container was created with. If it is gone, nothing was
// opened: an update then may open nothing either.
func createdSpec(n *Node, c grant.Container) request.Spec {
	none := request.Spec{Linux: &request.Linux{Resources: &request.Resources{Devices: denyAll}}}
	bundle := containers.Bundle(c.RuntimeRoot, c.ID)
	if bundle == "" {
		return none
	}
	config, err := host.ReadRegular(filepath.Join(bundle, "config.json"), request.MaxSpec)
	if err != nil {
		return none
	}
	spec, err := request.Parse(config)
	if err != nil {
		return none
	}
	return spec
}

var denyAll = []request.CgroupRule{{Allow: false, Access: "rwm"}}
