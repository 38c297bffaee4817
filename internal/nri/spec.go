package nri

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/request"
)

// specOf returns what NRI reports of a container as the spec that package request reads, so that
// there is one code for finding GPUs.
// NRI does not report capabilities, the root file system's path or (before 0.11) the user. The
// capabilities of a privileged container are inferred. The rest is read when the container is about
// to start (see settled).
func specOf(engine grant.Engine, pod *api.PodSandbox, c *api.Container) specs.Spec {
	linux := c.GetLinux()
	spec := specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{Cwd: "/", Env: c.GetEnv(), User: specs.User{UID: c.GetUser().GetUid(),
			GID: c.GetUser().GetGid()}},
		Annotations: annotationsOf(engine, pod, c),
		Linux: &specs.Linux{Resources: &specs.LinuxResources{Devices: rulesOf(linux),
			Unified: linux.GetResources().GetUnified()},
			CgroupsPath: linux.GetCgroupsPath()},
	}
	for _, m := range c.GetMounts() {
		spec.Mounts = append(spec.Mounts, m.ToOCI(nil))
	}
	for _, d := range linux.GetDevices() {
		spec.Linux.Devices = append(spec.Linux.Devices, d.ToOCI())
	}
	for _, ns := range linux.GetNamespaces() {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces,
			specs.LinuxNamespace{Type: specs.LinuxNamespaceType(ns.GetType()), Path: ns.GetPath()})
	}
	if class := linux.GetRdt().GetClosId().GetValue(); class != "" {
		spec.Linux.IntelRdt = &specs.LinuxIntelRdt{ClosID: class}
	}
	if h := c.GetHooks(); h != nil {
		spec.Hooks = &specs.Hooks{CreateRuntime: hooksOf(h.CreateRuntime),
			CreateContainer: hooksOf(h.CreateContainer), StartContainer: hooksOf(h.StartContainer),
			Poststart: hooksOf(h.Poststart), Poststop: hooksOf(h.Poststop)}
		//lint:ignore SA1019 Prestart is deprecated and still what NVIDIA's toolkit writes.
		spec.Hooks.Prestart = hooksOf(h.Prestart)
	}
	if privileged(spec) {
		caps := []string{"CAP_SYS_ADMIN", "CAP_MKNOD", "CAP_DAC_OVERRIDE"}
		spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
	}
	return spec
}

func hooksOf(hooks []*api.Hook) (list []specs.Hook) {
	for _, h := range hooks {
		list = append(list, h.ToOCI())
	}
	return list
}

// rulesOf returns the container's device rules. Engines give every container some, beginning with
// one for all devices. If NRI reports none, its engine does not pass them.
func rulesOf(linux *api.LinuxContainer) []specs.LinuxDeviceCgroup {
	var rules []specs.LinuxDeviceCgroup
	for _, r := range linux.GetResources().GetDevices() {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: r.GetAllow(), Type: r.GetType(),
			Major: r.GetMajor().Get(), Minor: r.GetMinor().Get(), Access: r.GetAccess()})
	}
	if len(rules) == 0 {
		return []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	}
	return rules
}

// privileged reports whether a container looks privileged: every device, or a writable /sys.
func privileged(spec specs.Spec) bool {
	for _, r := range spec.Linux.Resources.Devices {
		if r.Allow && (r.Type == "" || r.Type[0] == 'a') {
			return true
		}
	}
	return slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool {
		return m.Type == "sysfs" && !slices.Contains(m.Options, "ro")
	})
}

// cdiNames is the annotation for the names of CDI devices that the container got by CRI's own
// field.
const cdiNames = "cdi.k8s.io/requested"

// annotationsOf returns the pod's annotations, overridden by the container's, overridden by the
// identity that the engine reports. CDI devices of gpuledger's are judged by what they brought, as
// the runtime wrapper judges them.
func annotationsOf(engine grant.Engine, pod *api.PodSandbox, c *api.Container) map[string]string {
	all := map[string]string{}
	maps.Copy(all, pod.GetAnnotations())
	maps.Copy(all, c.GetAnnotations())
	var names []string
	for _, d := range c.GetCDIDevices() {
		if name := d.GetName(); !strings.HasPrefix(name, "gpuledger.dev/") {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		all[cdiNames] = strings.Join(names, ",")
	}
	request.WriteIdentity(all, engine, grant.Identity{UID: pod.GetUid(), Namespace: pod.GetNamespace(),
		Pod: pod.GetName(), Container: c.GetName()})
	return all
}

// settled returns the config.json that the real runtime was given, with the annotations that only
// NRI reports: an engine passes on those that its configuration allows.
func settled(config []byte, seen specs.Spec) ([]byte, error) {
	var spec map[string]any
	if err := json.Unmarshal(config, &spec); err != nil {
		return nil, err
	}
	annotations, _ := spec["annotations"].(map[string]any)
	if annotations == nil {
		annotations = map[string]any{}
	}
	for key, value := range seen.Annotations {
		annotations[key] = value
	}
	spec["annotations"] = annotations
	return json.Marshal(spec)
}
