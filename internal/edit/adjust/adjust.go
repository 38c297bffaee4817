// Package adjust translates a verdict's edits into an NRI adjustment. It is apart from package edit
// so that the hot binaries, gpuledger-runtime and gpuledger-hook, link nothing of NRI.
//
// NRI can express less than an OCI spec. It cannot remove a hook. Removals from the environment and
// from the devices are lost (containerd/nri v0.12.5, pkg/adaptation/result.go: adjustEnv and
// adjustDevices keep additions only). So a variable is set to nothing, and a node becomes /dev/null
// under its name. An edit that cannot be expressed is an error, and the container is refused.
package adjust

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/edit"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// Inexpressible is an error: an edit that NRI cannot express.
type Inexpressible struct{ Edit string }

// Error names the edit.
func (e *Inexpressible) Error() string { return "NRI cannot " + e.Edit }

func inexpressible(format string, args ...any) error {
	return &Inexpressible{Edit: fmt.Sprintf(format, args...)}
}

// Support is what an engine's NRI carries.
type Support struct {
	Rules bool // device rules; since NRI 0.10, older ones drop them silently
}

// Container returns the adjustment that has the same effect on a container as edit.OCI has on its
// spec. The error is an *Inexpressible if there is none.
func (e Support) Container(v grant.Verdict, c *api.Container) (*api.ContainerAdjustment, error) {
	t := translation{Support: e, verdict: v, container: c, adjustment: &api.ContainerAdjustment{}}
	for _, part := range []func() error{t.env, t.devices, t.rules, t.mounts, t.hooks, t.annotations, t.rest} {
		if err := part(); err != nil {
			return nil, err
		}
	}
	return t.adjustment, nil
}

type translation struct {
	Support
	verdict    grant.Verdict
	container  *api.Container
	adjustment *api.ContainerAdjustment
}

// removed lists the removals of a kind, by name, that the container has.
func (t *translation) removed(kind grant.RemovalKind, has func(name string) int) (names []string) {
	for _, r := range t.verdict.Removed {
		if r.Kind == kind && has(r.Name) > 0 {
			names = append(names, r.Name)
		}
	}
	return names
}

// env sets variables. The engine changes only the first of several entries of a name, and readers
// take the last.
func (t *translation) env() error {
	set := map[string]string{}
	for _, name := range t.removed(grant.RemoveEnv, t.entries) {
		if strings.HasPrefix(name, "CUDA_MPS_") { // what its client does with an empty one is not known
			return inexpressible("take %s out of the environment", name)
		}
		set[name] = ""
	}
	for _, entry := range t.verdict.Edits.Env {
		name, value, _ := strings.Cut(entry, "=")
		set[name] = value
	}
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if t.entries(name) > 1 {
			return inexpressible("set %s, which is in the environment more than once", name)
		}
		t.adjustment.AddEnv(name, set[name])
	}
	return nil
}

func (t *translation) entries(name string) (n int) {
	for _, entry := range t.container.GetEnv() {
		if key, _, _ := strings.Cut(entry, "="); key == name {
			n++
		}
	}
	return n
}

func (t *translation) devices() error {
	for _, n := range t.verdict.Edits.DeviceNodes {
		t.adjustment.AddDevice(device(n))
	}
	for _, path := range t.removed(grant.RemoveDevice, t.nodes) {
		// the engine's runtime then binds the host's node at the path, and ignores the numbers
		if t.userNamespaced() {
			return inexpressible("take %s from a container with a user namespace", path)
		}
		t.adjustment.AddDevice(null(path))
	}
	for _, d := range t.adjustment.GetLinux().GetDevices() {
		if t.nodes(d.Path) > 1 {
			return inexpressible("replace the node %s, which the container has more than once", d.Path)
		}
	}
	return nil
}

func device(n *cdispec.DeviceNode) *api.LinuxDevice {
	return &api.LinuxDevice{Path: n.Path, Type: n.Type, Major: n.Major, Minor: n.Minor,
		FileMode: api.FileMode(n.FileMode), Uid: api.UInt32(uint32(0)), Gid: api.UInt32(uint32(0))}
}

// null returns /dev/null under another name.
func null(path string) *api.LinuxDevice {
	mode := uint32(0o666)
	return &api.LinuxDevice{Path: path, Type: "c", Major: 1, Minor: 3, FileMode: &api.OptionalFileMode{
		Value: mode}}
}

func (t *translation) nodes(path string) (n int) {
	for _, d := range t.container.GetLinux().GetDevices() {
		if d.GetPath() == path {
			n++
		}
	}
	return n
}

func (t *translation) userNamespaced() bool {
	return slices.ContainsFunc(t.container.GetLinux().GetNamespaces(),
		func(ns *api.LinuxNamespace) bool { return ns.GetType() == "user" })
}

// rules adds device rules; the engine itself adds one for each device. Rules can only be appended,
// so a list that replaces the container's begins by denying all, and a rule is removed by denying
// the same device.
func (t *translation) rules() error {
	rules := edit.Rules(t.verdict)
	if !t.verdict.Narrow {
		rules = slices.DeleteFunc(rules, t.comesWithDevice)
		for _, r := range t.verdict.Removed {
			if r.Kind != grant.RemoveRule {
				continue
			}
			deny, err := denial(r.Name)
			if err != nil {
				return err
			}
			rules = append(rules, deny)
		}
	}
	if len(rules) == 0 {
		return nil
	}
	if !t.Rules {
		return inexpressible("change device rules on this engine, whose NRI is older than 0.10")
	}
	linux := t.adjustment.GetLinux()
	if linux == nil {
		linux = &api.LinuxContainerAdjustment{}
		t.adjustment.Linux = linux
	}
	linux.Resources = &api.LinuxResources{}
	for _, r := range rules {
		linux.Resources.Devices = append(linux.Resources.Devices,
			&api.LinuxDeviceCgroup{Allow: r.Allow, Type: kind(r), Major: api.Int64(r.Major),
				Minor: api.Int64(r.Minor), Access: r.Access})
	}
	return nil
}

// kind returns the type of a rule. In OCI an empty type means all devices, but not for every reader
// of NRI.
func kind(r specs.LinuxDeviceCgroup) string {
	if r.Type == "" {
		return "a"
	}
	return r.Type
}

// comesWithDevice reports whether NRI's generator adds a rule itself. It allows reading and writing
// of each device that an adjustment adds.
func (t *translation) comesWithDevice(r specs.LinuxDeviceCgroup) bool {
	return slices.ContainsFunc(t.verdict.Edits.DeviceNodes, func(n *cdispec.DeviceNode) bool {
		return r.Allow && r.Access == "rw" && r.Type == n.Type && r.Major != nil && *r.Major == n.Major &&
			r.Minor != nil && *r.Minor == n.Minor
	})
}

// denial returns a rule that denies what a removal names, for example "c 195:254". Runtimes refuse
// to deny a part of a wildcard, or a wildcard that contains a later rule.
func denial(name string) (specs.LinuxDeviceCgroup, error) {
	kind, numbers, _ := strings.Cut(name, " ")
	majorText, minorText, _ := strings.Cut(numbers, ":")
	major, err := strconv.ParseInt(majorText, 10, 64)
	if err != nil {
		return specs.LinuxDeviceCgroup{}, inexpressible("take back the device rule %q", name)
	}
	minor, err := strconv.ParseInt(minorText, 10, 64)
	if err != nil {
		return specs.LinuxDeviceCgroup{}, inexpressible("take back the device rule %q", name)
	}
	return specs.LinuxDeviceCgroup{Allow: false, Type: kind, Major: &major, Minor: &minor, Access: "rwm"}, nil
}

func (t *translation) mounts() error {
	for _, m := range t.verdict.Edits.Mounts {
		t.adjustment.AddMount(&api.Mount{Destination: m.ContainerPath, Type: "bind", Source: m.HostPath,
			Options: m.Options})
	}
	for _, destination := range t.removed(grant.RemoveMount, t.mounted) {
		t.adjustment.RemoveMount(destination)
	}
	for _, m := range t.adjustment.GetMounts() {
		if destination := api.ClearRemovalMarker(m.Destination); t.mounted(destination) > 1 {
			return inexpressible("replace the mount of %s, which the container has more than once",
				destination)
		}
	}
	return nil
}

func (t *translation) mounted(destination string) (n int) {
	for _, m := range t.container.GetMounts() {
		if m.GetDestination() == destination {
			n++
		}
	}
	return n
}

func (t *translation) hooks() error {
	if paths := t.removed(grant.RemoveHook, t.hooked); len(paths) > 0 {
		return inexpressible("take out the hook %s", paths[0])
	}
	for _, h := range t.verdict.Edits.Hooks {
		hook := []*api.Hook{{Path: h.Path, Args: h.Args, Env: h.Env, Timeout: api.Int(h.Timeout)}}
		stages := map[string]*api.Hooks{
			"createRuntime": {CreateRuntime: hook}, "createContainer": {CreateContainer: hook},
			"startContainer": {StartContainer: hook},
			"prestart":       {Prestart: hook}, "poststart": {Poststart: hook}, "poststop": {Poststop: hook},
		}
		if stages[h.HookName] == nil {
			return inexpressible("add a hook of the stage %q", h.HookName)
		}
		t.adjustment.AddHooks(stages[h.HookName])
	}
	return nil
}

func (t *translation) hooked(path string) (n int) {
	h := t.container.GetHooks()
	for _, stage := range [][]*api.Hook{h.GetPrestart(), h.GetCreateRuntime(), h.GetCreateContainer(),
		h.GetStartContainer(), h.GetPoststart(), h.GetPoststop()} {
		for _, hook := range stage {
			if hook.GetPath() == path {
				n++
			}
		}
	}
	return n
}

func (t *translation) annotations() error {
	has := func(key string) int {
		if _, found := t.container.GetAnnotations()[key]; found {
			return 1
		}
		return 0
	}
	for _, key := range t.removed(grant.RemoveAnnotation, has) {
		t.adjustment.RemoveAnnotation(key)
	}
	return nil
}

// rest refuses edits that no verdict has today and that NRI could not carry.
func (t *translation) rest() error {
	if e := t.verdict.Edits; len(e.AdditionalGIDs) > 0 || e.IntelRdt != nil || len(e.NetDevices) > 0 {
		return inexpressible("add groups, resource classes or network devices")
	}
	return nil
}
