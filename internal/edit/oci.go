// Package edit makes the changes of a verdict: OCI applies them to a config.json, CDI returns them
// as the edits of a CDI device. They are the verdict's Edits (devices, mounts, environment and
// hooks that give the container its grant), its device rules, and what it removes from the spec.
// Package adjust below it does the same for NRI.
package edit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ocispec"
	"github.com/gpuledger/gpuledger/internal/tokens"
)

// OCI applies a verdict to a config.json. What the verdict does not name keeps its bytes; applying
// it to its own result changes nothing.
func OCI(config []byte, v grant.Verdict) ([]byte, error) {
	e := ociEdit{verdict: v, removed: map[grant.Removal]bool{}}
	for _, r := range v.Removed {
		e.removed[r] = true
	}
	doc, err := change(config, sizeOf(v.Edits), []part{
		{name: "process", parts: []part{{name: "env", fn: e.env}}},
		{name: "linux", parts: []part{
			{name: "devices", fn: e.devices},
			{name: "maskedPaths", fn: e.masked},
			{name: "resources", parts: []part{{name: "devices", fn: e.rules}}},
		}},
		{name: "mounts", fn: e.mounts},
		{name: "hooks", fn: e.hooks},
		{name: "annotations", fn: e.annotations},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot edit the spec: %w", err)
	}
	return doc, nil
}

type ociEdit struct {
	verdict grant.Verdict
	removed map[grant.Removal]bool
}

func (e ociEdit) removes(kind grant.RemovalKind, name string) bool {
	return e.removed[grant.Removal{Kind: kind, Name: name}]
}

// removesAny reports whether a part of the spec must be read: reading a part takes a create longer
// than editing it.
func (e ociEdit) removesAny(kind grant.RemovalKind) bool {
	return slices.ContainsFunc(e.verdict.Removed, func(r grant.Removal) bool { return r.Kind == kind })
}

// env removes every entry of a name that is removed or set, and then sets, because readers disagree
// on which of two entries counts.
func (e ociEdit) env(w *tokens.Writer, old jsontext.Value) (bool, error) {
	set := map[string]bool{}
	for _, entry := range e.verdict.Edits.Env {
		name, _, _ := strings.Cut(entry, "=")
		set[name] = true
	}
	return list(w, old, tokens.String[string], func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return !set[name] && !e.removes(grant.RemoveEnv, name)
	}, additions[string]{items: e.verdict.Edits.Env, write: (*tokens.Writer).String})
}

func (e ociEdit) devices(w *tokens.Writer, old jsontext.Value) (bool, error) {
	ours := map[string]bool{}
	var devices []specs.LinuxDevice
	for _, n := range e.verdict.Edits.DeviceNodes {
		ours[n.Path] = true
		devices = append(devices, ociDevice(n))
	}
	return list(w, old, word("path"), func(path string) bool {
		return !ours[path] && !e.removes(grant.RemoveDevice, path)
	},
		additions[specs.LinuxDevice]{items: devices, write: ocispec.WriteDevice})
}

func ociDevice(n *cdispec.DeviceNode) specs.LinuxDevice {
	root := uint32(0)
	return specs.LinuxDevice{Path: n.Path, Type: n.Type, Major: n.Major, Minor: n.Minor, FileMode: n.FileMode,
		UID: &root, GID: &root}
}

// rules appends the rules of the granted devices. If the spec's rules were too wide, these replace
// them.
func (e ociEdit) rules(w *tokens.Writer, old jsontext.Value) (bool, error) {
	rules := Rules(e.verdict)
	ours := make([]string, len(rules))
	for i, r := range rules {
		ours[i] = ruleName(r)
	}
	if e.verdict.Narrow {
		old = nil
	}
	return list(w, old, ocispec.ReadRule, func(r specs.LinuxDeviceCgroup) bool {
		name := ruleName(r)
		for i := range rules {
			if rules[i].Allow == r.Allow && ours[i] == name { // it is appended again
				return false
			}
		}
		return !(r.Allow && e.removes(grant.RemoveRule, name))
	}, additions[specs.LinuxDeviceCgroup]{items: rules, write: ocispec.WriteRule})
}

// Rules writes a verdict's device rules as runtime-spec does. A list that replaces the spec's
// begins by denying all.
func Rules(v grant.Verdict) []specs.LinuxDeviceCgroup {
	var rules []specs.LinuxDeviceCgroup
	if v.Narrow {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: false, Access: "rwm"})
	}
	for _, r := range v.Rules {
		rules = append(rules, specs.LinuxDeviceCgroup{Allow: r.Allow, Type: string(r.Type),
			Major: number(r.Major), Minor: number(r.Minor), Access: r.Access})
	}
	return rules
}

// number leaves a wildcard out, as engines do.
func number(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}

// ruleName returns the name that a Removal has for a rule. Rules that are the same for crun have
// the same name: it takes any type except a and b for a character device, reads a number as a C
// int, and a number below 0 as all.
func ruleName(r specs.LinuxDeviceCgroup) string {
	digits := func(n *int64) string {
		if n == nil || *n < 0 || int32(*n) < 0 {
			return "*"
		}
		return strconv.Itoa(int(int32(*n)))
	}
	kind := "c"
	if r.Type == "" || r.Type[0] == 'a' || r.Type[0] == 'b' {
		kind = r.Type
	}
	return kind + " " + digits(r.Major) + ":" + digits(r.Minor)
}

// masked hides paths. CDI and NRI cannot express that, so containers behind them see what the
// driver reports about all GPUs.
func (e ociEdit) masked(w *tokens.Writer, old jsontext.Value) (bool, error) {
	if len(e.verdict.Masked) == 0 {
		return false, nil
	}
	return list(w, old, tokens.String[string], func(path string) bool {
		return !slices.Contains(e.verdict.Masked, path)
	},
		additions[string]{items: e.verdict.Masked, write: (*tokens.Writer).String})
}

func (e ociEdit) mounts(w *tokens.Writer, old jsontext.Value) (bool, error) {
	if len(e.verdict.Edits.Mounts) == 0 && !e.removesAny(grant.RemoveMount) {
		return false, nil
	}
	edits := e.verdict.Edits.Mounts
	ours := make(map[string]bool, len(edits))
	for _, m := range edits {
		ours[m.ContainerPath] = true
	}
	return list(w, old, word("destination"), func(place string) bool {
		return !ours[place] && !e.removes(grant.RemoveMount, place)
	},
		additions[*cdispec.Mount]{edits, mountWriter()})
}

// sizeOf returns about how many bytes these edits add to a spec.
func sizeOf(edits cdispec.ContainerEdits) int {
	const others, mount = 2 << 10, 96 // without the mounts, and without a mount's two paths
	size := others
	for _, m := range edits.Mounts {
		size += len(m.ContainerPath) + len(m.HostPath) + mount
	}
	return size
}

func mountWriter() func(*tokens.Writer, *cdispec.Mount) {
	var mw ocispec.MountWriter
	return func(w *tokens.Writer, m *cdispec.Mount) {
		mw.Write(w, specs.Mount{Destination: m.ContainerPath, Type: "bind", Source: m.HostPath,
			Options: m.Options})
	}
}

// hooks removes injectors from every stage, and appends the verdict's hooks to their stages.
func (e ociEdit) hooks(w *tokens.Writer, old jsontext.Value) (bool, error) {
	if !e.removesAny(grant.RemoveHook) && len(e.verdict.Edits.Hooks) == 0 {
		return false, nil
	}
	stages, err := take(old, nil)
	if err != nil {
		return false, err
	}
	var parts []part
	for _, stage := range stages.members {
		if stage.value.Kind() == '[' {
			parts = append(parts, e.stage(string(tokens.Name(stage.name))))
		}
	}
	for _, h := range e.verdict.Edits.Hooks {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == h.HookName }) {
			parts = append(parts, e.stage(h.HookName))
		}
	}
	return stages.rewrite(w, parts)
}

func (e ociEdit) stage(name string) part {
	var ours []specs.Hook
	for _, h := range e.verdict.Edits.Hooks {
		if h.HookName == name {
			ours = append(ours, specs.Hook{Path: h.Path, Args: h.Args, Env: h.Env, Timeout: h.Timeout})
		}
	}
	keep := func(h specs.Hook) bool {
		again := func(o specs.Hook) bool { return o.Path == h.Path && slices.Equal(o.Args, h.Args) }
		return !e.removes(grant.RemoveHook, h.Path) && !slices.ContainsFunc(ours, again)
	}
	return part{name: name, fn: func(w *tokens.Writer, old jsontext.Value) (bool, error) {
		return list(w, old, ocispec.ReadHook, keep, additions[specs.Hook]{
			items: ours, write: ocispec.WriteHook})
	}}
}

func (e ociEdit) annotations(w *tokens.Writer, old jsontext.Value) (bool, error) {
	if !e.removesAny(grant.RemoveAnnotation) {
		return false, nil
	}
	o, err := take(old, nil)
	if err != nil {
		return false, err
	}
	stays := func(m *member) bool { return !e.removes(grant.RemoveAnnotation, string(tokens.Name(m.name))) }
	if !slices.ContainsFunc(o.members, func(m member) bool { return !stays(&m) }) {
		return false, nil
	}
	o.some(w, stays)
	return true, nil
}
