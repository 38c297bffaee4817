package admission

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// admit returns the verdict that gives the container its grant: the nodes of its GPUs, the control
// and UVM nodes, device rules for exactly these, one NVIDIA_VISIBLE_DEVICES, and the driver's
// files.
func admit(q *question, u *grantUse, removed removals, recorded []string) grant.Verdict {
	env := append(mpsEnv(u.grant), visibleDevices+"="+visibleValue(q, u.grant))
	for _, r := range q.request.Dropped {
		if !sets(env, r) { // a variable that is set replaces all of its occurrences
			removed.add(r)
		}
	}
	nodes := nodesOf(q, u)
	v := grant.Verdict{
		Kind:      grant.Admit,
		Grant:     u.grant,
		Removed:   removed.list,
		Masked:    masked(q, u),
		Strength:  u.strength,
		Weaker:    weakerThanListed(q, u),
		Limited:   hasMount(u.files, filepath.Join(grant.ShimPlace, grant.LimitsFile)),
		Throttled: u.throttled,
		Driven:    u.driven,
		Narrow: slices.ContainsFunc(q.request.Hits,
			func(h grant.Hit) bool { return h.Cover == grant.CoverNarrow }),
		Recorded: append(recorded, notes(q)...),
	}
	v.Edits.Env = env
	v.Edits.DeviceNodes = nodes
	v.Edits.Mounts = append(u.files, u.mpsMounts...)
	if u.driven {
		v.Edits.Hooks = append(v.Edits.Hooks, q.inventory.Limiter.Edit())
	}
	if q.request.AllDevices {
		v.Rules = Confined(q.request.Devices)
	}
	v.Rules = addRules(v.Rules, nodes)
	if v.Weaker != "" {
		v.Recorded = append(v.Recorded, v.Weaker)
	}
	return v
}

// sets reports whether an environment sets the variable of a removal.
func sets(env []string, r grant.Removal) bool {
	return r.Kind == grant.RemoveEnv &&
		slices.ContainsFunc(env, func(entry string) bool { return strings.HasPrefix(entry, r.Name+"=") })
}

// visibleValue returns the value of the container's NVIDIA_VISIBLE_DEVICES: the UUIDs of its GPUs,
// or void if the policy says that another injector would act on them.
func visibleValue(q *question, g *grant.Grant) string {
	if q.policy.Enforcement.VisibleDevices == grant.VisibleVoid {
		return "void"
	}
	return strings.Join(g.UUIDs(), ",")
}

// masked lists the directories of procfs in which the driver describes GPUs and MIG devices that
// are not granted. They give no access, but every container sees those of all devices of the node.
func masked(q *question, u *grantUse) []string {
	var paths []string
	for _, gpu := range q.inventory.GPUs {
		granted := slices.ContainsFunc(u.devices, func(d grant.Device) bool { return d.GPU.UUID == gpu.UUID })
		if gpu.PCI != "" && !granted {
			paths = append(paths, "/proc/driver/nvidia/gpus/"+gpu.PCI)
		}
	}
	return append(paths, maskedInstances(u)...)
}

// maskedInstances lists the directories of the MIG devices on the same GPUs that are not granted.
func maskedInstances(u *grantUse) []string {
	var paths []string
	for _, d := range u.devices {
		for _, m := range d.GPU.MIG {
			dir := fmt.Sprintf("/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d", d.GPU.Minor, m.GI)
			switch granted := grantedComputes(u.grant, d.GPU.MIG, m.GI); {
			case granted == nil:
				paths = append(paths, dir)
			case !slices.Contains(granted, m.CI):
				paths = append(paths, path.Join(dir, fmt.Sprintf("ci%d", m.CI)))
			}
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// grantedComputes lists the compute instances of a GPU instance that the grant has.
func grantedComputes(g *grant.Grant, devices []grant.MIGDevice, instance int) (computes []int) {
	for _, m := range devices {
		if m.GI == instance && g.Has(m.UUID) {
			computes = append(computes, m.CI)
		}
	}
	return computes
}
