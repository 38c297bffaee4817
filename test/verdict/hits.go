package verdict

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Hit is one way to a GPU in a spec.
type Hit struct {
	Code Code
	Env  bool // `ungranted = "hide"` removes it
	// how a grant covers it: it drops it; or it has to give these GPUs (by name; "all": whatever
	// it has), or these parts
	Drop  bool
	Names []string
	Parts []Part
	Exact bool // "all" is none that a grant has

	Privileged bool // `privileged = "strip"` removes it, and a grant narrows it
	Parent     bool // a directory above GPUs' nodes, of which the rules decide what it reaches
	Narrow     bool // a grant replaces the missing rule
	Unclosed   bool // only the missing rule of a user namespace (ADR 24)
	Unclear    string
}

// finder has what the ways share.
type finder struct {
	node   Node
	policy Policy
	spec   specs.Spec
	id     Identity
	open   opened
	hits   []Hit
}

func (f *finder) add(h Hit) { f.hits = append(f.hits, h) }

// find lists the ways to a GPU in a spec, but for references and allocations. A sandbox asks for
// nothing by environment or annotation, because engines copy those into it (docs/refusals.md).
func find(in Input, p Policy, spec specs.Spec, id Identity) *finder {
	// of a simulated node the snapshot alone has the DRM nodes
	if in.Node.Inventory == InventoryMissing || p.Broken {
		in.Node.GPUs = slices.Clone(in.Node.GPUs)
		for i := range in.Node.GPUs {
			in.Node.GPUs[i].Render = nil
		}
	}
	f := &finder{node: in.Node, policy: p, spec: spec, id: id}
	if r := linux(spec).Resources; r != nil {
		f.open = f.node.open(r.Devices)
	} else {
		f.open = f.node.open(nil)
	}
	if !id.Sandbox {
		f.environment()
		f.cdi()
	}
	if in.Node.Rootless {
		f.open = opened{} // rules count for nothing, in both directions (ADR 50)
		f.dmem()
	} else {
		f.unit()
		f.rules()
	}
	f.devices()
	f.mounts()
	f.hooks()
	return f
}

// environment: visible-devices-all, visible-devices-outside-grant, gpu-env.
func (f *finder) environment() {
	asked := false
	for _, name := range f.policy.DeviceEnv {
		value, set := variable(f.spec, name)
		asked = asked || set && name == "NVIDIA_VISIBLE_DEVICES"
		switch value {
		case "", "void", "none":
		default:
			f.names(strings.Split(value, ","), true)
		}
	}
	cuda, _ := variable(f.spec, "CUDA_VERSION")
	_, requires := variable(f.spec, "NVIDIA_REQUIRE_CUDA")
	if cuda != "" && !requires && !asked { // an image from before NVIDIA_VISIBLE_DEVICES
		f.add(Hit{Code: VisibleDevicesAll, Env: true, Names: []string{"all"}})
	}
	for _, name := range []string{"NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES",
		"NVIDIA_IMEX_CHANNELS",
		"NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"} {
		if value, _ := variable(f.spec, name); value != "" {
			f.add(Hit{Code: GPUEnv, Env: true, Drop: true})
		}
	}
	for _, name := range []string{"NVIDIA_GDS", "NVIDIA_MOFED", "NVIDIA_GDRCOPY", "NVIDIA_NVSWITCH"} {
		if value, _ := variable(f.spec, name); value == "enabled" {
			f.add(Hit{Code: GPUEnv, Env: true, Drop: true})
		}
	}
}

// names are GPUs by index or UUID, or all.
func (f *finder) names(names []string, env bool) {
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == "" })
	h := Hit{Code: VisibleDevicesOutsideGrant, Env: env, Names: names}
	if slices.Contains(names, "all") {
		h.Code, h.Names = VisibleDevicesAll, []string{"all"}
	}
	if len(names) > 1 && slices.ContainsFunc(names, func(n string) bool {
		return n == "all" || n == "void" ||
			n == "none"
	}) {
		h.Unclear = "a list with all, void or none among other words"
	}
	if slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, "=") }) {
		h.Code = CDIDeviceOutsideGrant
	}
	if h.Unclear != "" && h.Code != VisibleDevicesAll {
		h.Names = slices.DeleteFunc(names, func(n string) bool { return n == "void" || n == "none" })
	}
	f.add(h)
}

// cdi: names of CDI devices in annotations (cdi-device-outside-grant). Other vendors' devices are
// no GPUs of the ledger. A grant covers a GPU by a name of a kind whose devices are GPUs by index
// or UUID. Of NVIDIA's other kinds nothing says what a device is, and `all` names every GPU.
func (f *finder) cdi() {
	for key, value := range f.spec.Annotations {
		if !strings.HasPrefix(key, "cdi.k8s.io/") && !strings.HasPrefix(key, "nvidia.cdi.k8s.io/") {
			continue
		}
		for name := range strings.SplitSeq(value, ",") {
			kind, device, _ := strings.Cut(strings.TrimSpace(name), "=")
			vendor, _, _ := strings.Cut(kind, "/")
			if vendor == "nvidia.com" || strings.HasSuffix(vendor, ".nvidia.com") ||
				kind == "gpuledger.dev/gpu" {
				h := Hit{Code: CDIDeviceOutsideGrant}
				if slices.Contains([]string{"gpuledger.dev/gpu", "nvidia.com/gpu",
					"k8s.device-plugin.nvidia.com/gpu"}, kind) {
					h.Names, h.Exact = []string{device}, true
				}
				f.add(h)
			}
		}
	}
}

// unit: what changes the rules of a container from outside its device rules: annotations, raw
// cgroup keys (gpu-device-rule, limit-unenforceable; ADR 12 and 64).
func (f *finder) unit() {
	for key, value := range f.spec.Annotations {
		property, isProperty := strings.CutPrefix(key, "org.systemd.property.")
		switch {
		case isProperty && (strings.HasPrefix(property, "Device") || property == "PIDs" ||
			property == "PIDFDs"):
			f.add(Hit{Code: GPUDeviceRule})
		case key == "run.oci.delegate-cgroup" && strings.Contains(value, ".."):
			f.add(Hit{Code: GPUDeviceRule})
		}
	}
	if r := linux(f.spec).Resources; r != nil {
		for key := range r.Unified {
			f.raw(key)
		}
	}
}

// dmem is left of raw keys where no rule is enforced (ADR 64): the driver's limits.
func (f *finder) dmem() {
	if r := linux(f.spec).Resources; r != nil {
		for key := range r.Unified {
			if strings.HasPrefix(key, "dmem.") {
				f.raw(key)
			}
		}
	}
}

func (f *finder) raw(key string) {
	controller, _, _ := strings.Cut(key, ".")
	switch {
	case key == "" || key == "." || key == ".." || strings.Contains(key, "/"):
		f.add(Hit{Code: GPUDeviceRule})
	case slices.Contains([]string{"cgroup.max.depth", "cgroup.max.descendants", "cgroup.pressure"}, key):
	case controller == "cgroup":
		f.add(Hit{Code: GPUDeviceRule})
	case controller == "dmem":
		f.add(Hit{Code: LimitUnenforceable})
	}
}

// foreignKey: a raw key of a controller that gpuledger does not know, which is refused beside a
// grant.
func foreignKey(spec specs.Spec) bool {
	known := []string{"cgroup", "dmem", "cpu", "cpuset", "hugetlb", "io", "irq", "memory", "misc", "pids",
		"rdma"}
	if r := linux(spec).Resources; r != nil {
		for key := range r.Unified {
			controller, _, _ := strings.Cut(key, ".")
			if !strings.Contains(key, "/") && controller != "" && !slices.Contains(known, controller) {
				return true
			}
		}
	}
	return false
}

// privileged: the rules open everything, or CAP_SYS_ADMIN and GPUs' nodes (ADR 2).
func (f *finder) privileged() bool {
	if f.open.all {
		return true
	}
	return capable(f.spec, "CAP_SYS_ADMIN") && slices.ContainsFunc(linux(f.spec).Devices,
		func(d specs.LinuxDevice) bool {
			_, ok := f.node.part(Number{d.Major, d.Minor})
			return ok && d.Type != "b" && d.Type != "p"
		})
}

// rules: gpu-device-rule, of a privileged container privileged-gpu.
func (f *finder) rules() {
	o := f.open
	h := Hit{Code: GPUDeviceRule, Unclear: o.unclear}
	if f.privileged() {
		h.Code, h.Privileged = PrivilegedGPU, true
	}
	if o.unclosed {
		h.Unclosed = namespace(f.spec, specs.UserNamespace) && o.plain && !o.wide && len(o.exact) == 0
		h.Narrow = true
		f.add(h)
		h.Unclosed, h.Narrow = false, false
	}
	if o.all || o.wide {
		f.add(h)
	}
	for _, d := range o.exact {
		p, _ := f.node.part(d)
		h.Parts = []Part{p}
		if p.kind == "modeset" {
			h.Unclear = "a device rule for nvidia-modeset"
		}
		f.add(h)
	}
}

// device says what a device of a spec is: by number, and in a user namespace by path, because
// there runc binds the path (the contract), and so where the runtime is not root (ADR 50).
func (f *finder) device(d specs.LinuxDevice) (parts []Part) {
	if f.node.Rootless || namespace(f.spec, specs.UserNamespace) {
		file, _, _ := f.node.lookup(d.Path)
		if p, ok := f.node.part(file.Device); ok {
			parts = append(parts, p)
		}
	}
	if d.Type == "c" || d.Type == "u" || d.Type == "" {
		if p, ok := f.node.part(Number{d.Major, d.Minor}); ok {
			parts = append(parts, p)
		}
	}
	return parts
}

// devices: gpu-device-node, of a privileged container privileged-gpu.
func (f *finder) devices() {
	for _, d := range linux(f.spec).Devices {
		if parts := f.device(d); len(parts) > 0 {
			h := Hit{Code: GPUDeviceNode, Parts: parts}
			if f.privileged() {
				h.Code, h.Privileged = PrivilegedGPU, true
			}
			f.add(h)
		}
	}
}

// hooks: those of NVIDIA's toolkit inject (gpu-hook), but the legacy one asks for nothing (ADR
// 8).
func (f *finder) hooks() {
	h := f.spec.Hooks
	if h == nil {
		return
	}
	//lint:ignore SA1019 runtimes still call prestart hooks
	early := h.Prestart
	for _, hook := range slices.Concat(early, h.CreateRuntime, h.CreateContainer, h.StartContainer,
		h.Poststart, h.Poststop) {
		if slices.Contains([]string{"nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-cli"},
			strings.TrimSuffix(path.Base(hook.Path), ".real")) {
			f.add(Hit{Code: GPUHook, Drop: true})
		}
	}
}
