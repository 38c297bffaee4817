package cdi

import (
	"fmt"
	"path/filepath"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/edit"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// Files writes and reads the CDI files of a node.
type Files struct {
	Node   *node.Node
	Config string // absolute path of the configuration, which the hook reads too
}

// hook returns the hook that judges and binds the container before it starts. It sets an
// environment: a hook without one inherits the image's, with LD_PRELOAD (CVE-2025-23266).
func (f Files) hook() *cdispec.Hook {
	path := f.Node.Policy.CDI.Hook
	return &cdispec.Hook{HookName: "createRuntime", Path: path,
		Args: []string{filepath.Base(path), "createRuntime"},
		Env:  []string{policy.PathEnv + "=" + f.Config}}
}

// GPUs returns the spec with each GPU and each MIG device of the node, by UUID and by index. There
// is no name for all of them. The notes say what is left out, and why. The spec is nil if it has no
// devices.
func (f Files) GPUs() (spec *cdispec.Spec, notes []string, err error) {
	inv, problem := f.Node.Inventory()
	if problem != nil {
		return nil, nil, problem.Refusal()
	}
	spec = &cdispec.Spec{Kind: grant.CDIKindGPU, ContainerEdits: cdispec.ContainerEdits{
		// void prevents another injector from adding GPUs; the wrapper replaces it with the granted
		// ones.
		Env:         []string{"NVIDIA_VISIBLE_DEVICES=void"},
		DeviceNodes: edit.CDINodes(admission.ControlNodes(inv)),
		Mounts:      admission.InstalledFiles(inv),
		Hooks:       []*cdispec.Hook{f.hook()},
	}}
	for _, d := range inv.Devices() {
		if d.MIG != nil && d.MIG.Caps == [2]int{} {
			notes = append(notes,
				fmt.Sprintf(
					"MIG device %s is left out: the driver had no capability for it when the "+
						"inventory was taken", d.UUID()))
			continue
		}
		spec.Devices = append(spec.Devices, devices(edit.CDINodes(admission.DeviceNodes(inv, d)),
			d.Name(), d.UUID())...)
	}
	if len(spec.Devices) == 0 {
		return nil, notes, nil
	}
	spec.Version, err = cdispec.MinimumRequiredVersion(spec)
	return spec, notes, err
}

// devices returns a CDI device with the same nodes for each name.
func devices(nodes []*cdispec.DeviceNode, names ...string) []cdispec.Device {
	list := make([]cdispec.Device, len(names))
	for i, name := range names {
		list[i] = cdispec.Device{Name: name, ContainerEdits: cdispec.ContainerEdits{DeviceNodes: nodes}}
	}
	return list
}

// Grant returns the spec with all that a grant gives, named by its reference. So only a container
// that presents the reference can ask for the device, and its environment says which grant it
// means. Errors are those of node.Offer.
func (f Files) Grant(r grant.Reference) (*cdispec.Spec, error) {
	v, err := grants.Offer(f.Node, r)
	if err != nil {
		return nil, err
	}
	if !v.Grant.Owner.HasSecret() {
		r.Secret = ""
	}
	edits, err := edit.CDI(v)
	if err != nil {
		return nil, err
	}
	edits.Env = append([]string{grant.ReferenceEnv + "=" + r.String()}, edits.Env...)
	hook := f.hook()
	// The hooks of two grants' devices are both in the spec. Of the variable above only one is.
	hook.Env = append(hook.Env, grant.ReferenceEnv+"="+string(r.ID))
	edits.Hooks = append(edits.Hooks, hook)
	spec := &cdispec.Spec{Kind: grant.CDIKindGrant,
		Devices: []cdispec.Device{{Name: r.String(), ContainerEdits: edits}}}
	spec.Version, err = cdispec.MinimumRequiredVersion(spec)
	return spec, err
}
