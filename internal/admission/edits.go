package admission

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

const visibleDevices = "NVIDIA_VISIBLE_DEVICES"

// admit gives the container what its grant says: the nodes of its GPUs, the control and UVM nodes,
// device rules for exactly these, one NVIDIA_VISIBLE_DEVICES, and the driver's files.
func (c *asking) admit() grant.Verdict {
	set := append(c.mpsEnv(), visibleDevices+"="+c.visible())
	for _, r := range c.request.Dropped {
		if !sets(set, r) { // setting it replaces every occurrence
			c.remove(r)
		}
	}
	v := grant.Verdict{Kind: grant.Admit, Grant: c.grant, Strength: c.strength(), Weaker: c.weaker(),
		Removed: c.removed}
	nodes := c.nodes()
	v.Edits.DeviceNodes = nodes
	v.Edits.Env = set
	v.Edits.Mounts = append(c.files, c.mpsMounts()...)
	if v.Driven = c.driven(); v.Driven {
		v.Edits.Hooks = append(v.Edits.Hooks, c.inventory.Limiter.Edit())
	}
	v.Limited = has(c.files, filepath.Join(grant.ShimPlace, grant.LimitsFile))
	v.Throttled = c.throttled()
	v.Masked = c.others()
	v.Narrow = slices.ContainsFunc(c.request.Hits, func(h grant.Hit) bool {
		return h.Cover == grant.CoverNarrow
	})
	if c.request.AllDevices {
		v.Rules = Confined(c.request.Devices)
	}
	for _, n := range nodes {
		r := grant.DeviceRule{Allow: true, Type: 'c', Major: n.Major, Minor: n.Minor, Access: n.Permissions}
		if !slices.Contains(v.Rules, r) { // a node can have two names
			v.Rules = append(v.Rules, r)
		}
	}
	v.Recorded = append(c.recorded, c.noted()...)
	if v.Weaker != "" {
		v.Recorded = append(v.Recorded, v.Weaker)
	}
	return v
}

// sets reports whether the edits set what a removal would take out.
func sets(env []string, r grant.Removal) bool {
	return r.Kind == grant.RemoveEnv && slices.ContainsFunc(env, func(entry string) bool {
		return strings.HasPrefix(entry, r.Name+"=")
	})
}

// others are the directories in which the driver tells of GPUs that are not granted. They give no
// access, but procfs shows every container all of the node's.
func (c *asking) others() []string {
	var paths []string
	granted := c.gpus()
	for _, gpu := range c.inventory.GPUs {
		if gpu.PCI != "" && !slices.ContainsFunc(granted, func(g grant.GPU) bool {
			return g.UUID == gpu.UUID
		}) {
			paths = append(paths, "/proc/driver/nvidia/gpus/"+gpu.PCI)
		}
	}
	return append(paths, c.otherInstances()...)
}

// visible is the container's one NVIDIA_VISIBLE_DEVICES: its UUIDs, or void where another injector
// would act on them.
func (c *asking) visible() string {
	if c.policy.Enforcement.VisibleDevices == grant.VisibleVoid {
		return "void"
	}
	uuids := make([]string, len(c.grant.GPUs))
	for i, s := range c.grant.GPUs {
		uuids[i] = s.UUID
	}
	return strings.Join(uuids, ",")
}

// nodes lists the device nodes that the grant brings, each once: MIG devices share their GPU's.
func (c *asking) nodes() []*cdispec.DeviceNode {
	var nodes []*cdispec.DeviceNode
	for _, d := range c.devices() {
		for _, n := range DeviceNodes(c.inventory, d) {
			if !slices.ContainsFunc(nodes, func(o *cdispec.DeviceNode) bool { return o.Path == n.Path }) {
				nodes = append(nodes, n)
			}
		}
	}
	return append(append(nodes, ControlNodes(c.inventory)...), c.graphicsNodes()...)
}

// GPUNode is a GPU's own device node.
func GPUNode(gpu grant.GPU) *cdispec.DeviceNode {
	return deviceNode("/dev/nvidia"+strconv.Itoa(gpu.Minor), grant.MajorNVIDIA, gpu.Minor)
}

// ControlNodes are the nodes that every client of the driver needs, whichever GPU it uses.
func ControlNodes(inv grant.Inventory) []*cdispec.DeviceNode {
	nodes := []*cdispec.DeviceNode{deviceNode("/dev/nvidiactl", grant.MajorNVIDIA, grant.MinorControl)}
	if uvm, found := inv.Majors[string(grant.ClassUVM)]; found {
		nodes = append(nodes, deviceNode("/dev/nvidia-uvm", uvm, 0),
			deviceNode("/dev/nvidia-uvm-tools", uvm, 1))
	}
	return nodes
}

// CapsNode is the node of a MIG instance: minor is what the driver says in the instance's
// capability file. Nil without the driver's major for such nodes.
func CapsNode(inv grant.Inventory, minor int) *cdispec.DeviceNode {
	major, found := inv.Majors[string(grant.ClassCaps)]
	if !found {
		return nil
	}
	return deviceNode("/dev/nvidia-caps/nvidia-cap"+strconv.Itoa(minor), major, minor)
}

func deviceNode(path string, major, minor int) *cdispec.DeviceNode {
	mode := os.FileMode(0o666) // as the driver makes them: the device cgroup is what keeps others out
	return &cdispec.DeviceNode{Path: path, HostPath: path, Type: "c", Major: int64(major),
		Minor: int64(minor), FileMode: &mode, Permissions: "rw"}
}

// Confined are the device rules of a privileged container that shall not reach GPUs: everything but
// NVIDIA's majors, those that its driver could still get, and its GPUs' DRM nodes (docs/adr/0010).
// It is an allow-list because runc refuses to punch holes into a rule for everything, and systemd
// takes a list of denials for "nothing allowed" at its next reload (both measured; 510 rules cost
// no measurable time).
func Confined(devices grant.DeviceMap) []grant.DeviceRule {
	rules := []grant.DeviceRule{{Allow: true, Type: 'b', Major: -1, Minor: -1, Access: "rwm"}}
	for major := range grant.LastMajor + 1 {
		_, nvidia := devices.Majors[major]
		nobodys := grant.IsDynamicMajor(major) && !devices.Taken[major]
		if !nvidia && !nobodys && major != grant.MajorDRM {
			rules = append(rules, grant.DeviceRule{Allow: true, Type: 'c', Major: int64(major),
				Minor: -1, Access: "rwm"})
		}
	}
	var others []int
	for minor, nvidia := range devices.DRM {
		if !nvidia {
			others = append(others, minor)
		}
	}
	slices.Sort(others)
	for _, minor := range others {
		rules = append(rules, grant.DeviceRule{Allow: true, Type: 'c', Major: grant.MajorDRM,
			Minor: int64(minor), Access: "rwm"})
	}
	return rules
}
