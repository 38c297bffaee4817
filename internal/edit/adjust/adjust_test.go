package adjust_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/edit"
	"github.com/gpuledger/gpuledger/internal/edit/adjust"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/request"
)

// container is what an engine reports about a spec.
func container(s specs.Spec) *api.Container {
	return &api.Container{Id: "c1", Env: s.Process.Env, Mounts: api.FromOCIMounts(s.Mounts),
		Hooks: api.FromOCIHooks(s.Hooks), Annotations: s.Annotations,
		Linux: &api.LinuxContainer{Devices: api.FromOCILinuxDevices(s.Linux.Devices),
			Namespaces: api.FromOCILinuxNamespaces(s.Linux.Namespaces)}}
}

var carries = adjust.Support{Rules: true}

// ordinary is a spec with one of everything that a verdict can change.
func ordinary() specs.Spec {
	n := func(n int64) *int64 { return &n }
	return specs.Spec{
		Process: &specs.Process{Env: []string{"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all",
			"NVIDIA_GDS=enabled", "TWICE=1", "TWICE=2", "CUDA_MPS_X=1"}},
		Annotations: map[string]string{"x": "y"},
		Mounts: []specs.Mount{{Destination: "/m", Source: "/etc", Type: "bind"}, {Destination: "/twice"},
			{Destination: "/twice"}},
		Hooks: &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/hook"}}},
		Linux: &specs.Linux{
			Devices: []specs.LinuxDevice{{Path: "/dev/nvidia1", Type: "c", Major: 195, Minor: 1},
				{Path: "/dev/twice", Type: "c", Major: 195, Minor: 2},
				{Path: "/dev/twice", Type: "c", Major: 1, Minor: 3}},
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{
				{Access: "rwm"}, {Allow: true, Type: "c", Major: n(1), Minor: n(3), Access: "rwm"},
				{Allow: true, Type: "c", Major: n(195), Minor: n(254), Access: "rw"}}},
		},
	}
}

func node(path string, minor int64) *cdispec.DeviceNode {
	mode := os.FileMode(0o666)
	return &cdispec.DeviceNode{Path: path, HostPath: path, Type: "c", Major: 195, Minor: minor,
		FileMode: &mode, Permissions: "rw"}
}

func rule(minor int64) grant.DeviceRule {
	return grant.DeviceRule{Allow: true, Type: 'c', Major: 195, Minor: minor, Access: "rw"}
}

func removed(kind grant.RemovalKind, name string) []grant.Removal {
	return []grant.Removal{{Kind: kind, Name: name}}
}

// TestTheSpecAfterwards compares, for each kind of edit, the spec after the edit through OCI and
// through NRI. A row lists what differs where NRI expresses it otherwise, and which edits NRI
// cannot express.
func TestTheSpecAfterwards(t *testing.T) {
	everything := grant.DeviceRule{Allow: true, Type: 'b', Major: -1, Minor: -1, Access: "rwm"}
	for _, c := range []struct {
		name    string
		verdict grant.Verdict
		differs string // what NRI's result has in place of OCI's; "" if they are the same
		cannot  string
	}{
		{name: "a variable set", verdict: grant.Verdict{Edits: cdispec.ContainerEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=GPU-0"}}}},
		{name: "a variable added", verdict: grant.Verdict{Edits: cdispec.ContainerEdits{Env: []string{"A=b=c"}}}},
		{name: "a variable removed", verdict: grant.Verdict{Removed: removed(grant.RemoveEnv, "NVIDIA_GDS")}, differs: "env NVIDIA_GDS="},
		{name: "a variable removed and set", verdict: grant.Verdict{Removed: removed(grant.RemoveEnv, "NVIDIA_VISIBLE_DEVICES"), Edits: cdispec.ContainerEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}}}},
		{name: "a variable that is not there removed", verdict: grant.Verdict{Removed: removed(grant.RemoveEnv, "B")}},
		{name: "one of two entries", verdict: grant.Verdict{Removed: removed(grant.RemoveEnv, "TWICE")}, cannot: "TWICE"},
		{name: "MPS", verdict: grant.Verdict{Removed: removed(grant.RemoveEnv, "CUDA_MPS_X")}, cannot: "CUDA_MPS_X"},
		{name: "a grant's nodes", verdict: grant.Verdict{Edits: cdispec.ContainerEdits{DeviceNodes: []*cdispec.DeviceNode{node("/dev/nvidia0", 0), node("/dev/nvidiactl", 255)}}, Rules: []grant.DeviceRule{rule(0), rule(255)}}},
		{name: "a node in another's place", verdict: grant.Verdict{Edits: cdispec.ContainerEdits{DeviceNodes: []*cdispec.DeviceNode{node("/dev/nvidia1", 0)}}, Rules: []grant.DeviceRule{rule(0)}}},
		{name: "a node removed", verdict: grant.Verdict{Removed: removed(grant.RemoveDevice, "/dev/nvidia1")}, differs: "node /dev/nvidia1 c 1:3"},
		{name: "one of two nodes", verdict: grant.Verdict{Removed: removed(grant.RemoveDevice, "/dev/twice")}, cannot: "/dev/twice"},
		{name: "a rule alone", verdict: grant.Verdict{Rules: []grant.DeviceRule{rule(7)}}},
		{name: "a rule removed", verdict: grant.Verdict{Removed: removed(grant.RemoveRule, "c 195:254")}},
		{name: "a wildcard removed", verdict: grant.Verdict{Removed: removed(grant.RemoveRule, "c 195:*")}, cannot: "c 195:*"},
		{name: "all rules replaced", verdict: grant.Verdict{Narrow: true, Rules: []grant.DeviceRule{everything, rule(0)}}},
		{name: "a mount", verdict: grant.Verdict{Edits: cdispec.ContainerEdits{Mounts: []*cdispec.Mount{{HostPath: "/h", ContainerPath: "/n", Options: []string{"ro", "bind"}}}}}},
		{name: "a mount in another's place", verdict: grant.Verdict{Edits: cdispec.ContainerEdits{Mounts: []*cdispec.Mount{{HostPath: "/h", ContainerPath: "/m"}}}}},
		{name: "a mount removed", verdict: grant.Verdict{Removed: removed(grant.RemoveMount, "/m")}},
		{name: "one of two mounts", verdict: grant.Verdict{Removed: removed(grant.RemoveMount, "/twice")}, cannot: "/twice"},
		{name: "an annotation removed", verdict: grant.Verdict{Removed: removed(grant.RemoveAnnotation, "x")}},
		{name: "a hook removed", verdict: grant.Verdict{Removed: removed(grant.RemoveHook, "/bin/hook")}, cannot: "/bin/hook"},
		{name: "a hook that is not there removed", verdict: grant.Verdict{Removed: removed(grant.RemoveHook, "/bin/other")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := ordinary()
			a, err := carries.Container(c.verdict, container(spec))
			var inexpressible *adjust.Inexpressible
			if c.cannot != "" {
				if !errors.As(err, &inexpressible) || !strings.Contains(err.Error(), c.cannot) {
					t.Errorf("got %v, want that %s cannot be expressed", err, c.cannot)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			before := marshal(t, spec)
			oci, err := edit.OCI(before, c.verdict)
			if err != nil {
				t.Fatal(err)
			}
			nri, err := adjust.Apply(before, a)
			if err != nil {
				t.Fatal(err)
			}
			if more := differences(facts(t, nri), facts(t, oci)); strings.Join(more, ", ") != c.differs {
				t.Errorf("NRI's has %q beyond OCI's, want %q", more, c.differs)
			}
			if less := differences(facts(t, oci), facts(t, nri)); len(less) > 0 {
				t.Errorf("OCI's has %q, NRI's has not", less)
			}
		})
	}
}

// TestOldEngines drop device rules without an error, so an adjustment that needs them is refused.
func TestOldEngines(t *testing.T) {
	old := adjust.Support{}
	granted := grant.Verdict{Edits: cdispec.ContainerEdits{
		DeviceNodes: []*cdispec.DeviceNode{node("/dev/nvidia0", 0)}}, Rules: []grant.DeviceRule{rule(0)}}
	if _, err := old.Container(granted, container(ordinary())); err != nil {
		t.Errorf("a grant's nodes bring their rules along, but: %v", err)
	}
	for _, v := range []grant.Verdict{{Narrow: true}, {Removed: removed(grant.RemoveRule, "c 195:254")},
		{Rules: []grant.DeviceRule{rule(1)}}} {
		var inexpressible *adjust.Inexpressible
		if _, err := old.Container(v, container(ordinary())); !errors.As(err, &inexpressible) {
			t.Errorf("%+v: got %v, want that it cannot be expressed", v, err)
		}
	}
}

func TestANodeOfAUserNamespaceStays(t *testing.T) {
	spec := ordinary()
	spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.UserNamespace}}
	var inexpressible *adjust.Inexpressible
	_, err := carries.Container(grant.Verdict{Removed: removed(grant.RemoveDevice, "/dev/nvidia1")},
		container(spec))
	if !errors.As(err, &inexpressible) {
		t.Errorf("got %v, want that it cannot be expressed", err)
	}
}

func TestNoEditsGiveNoAdjustment(t *testing.T) {
	a, err := carries.Container(grant.Verdict{Kind: grant.Pass}, container(ordinary()))
	if err != nil || a.String() != (&api.ContainerAdjustment{}).String() {
		t.Errorf("got %v (%v), want an empty adjustment", a, err)
	}
}

func marshal(t interface{ Fatal(...any) }, v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// facts are the contents of a spec, in no order. Of the device rules it has the result: NRI can
// only append.
func facts(t *testing.T, config []byte) []string {
	t.Helper()
	var s specs.Spec
	if err := json.Unmarshal(config, &s); err != nil {
		t.Fatal(err)
	}
	var f []string
	add := func(format string, args ...any) { f = append(f, fmt.Sprintf(format, args...)) }
	for _, e := range s.Process.Env {
		add("env %s", e)
	}
	for _, m := range s.Mounts {
		add("mount %s %s %s %v", m.Destination, m.Source, m.Type, m.Options)
	}
	for _, d := range s.Linux.Devices {
		add("node %s %s %d:%d", d.Path, d.Type, d.Major, d.Minor)
	}
	for k, v := range s.Annotations {
		add("annotation %s %s", k, v)
	}
	for _, h := range s.Hooks.CreateRuntime {
		add("hook %s", h.Path)
	}
	for _, r := range inForce(s.Linux.Resources.Devices) {
		add("rule %s", r)
	}
	return f
}

// inForce applies device rules in order, as runc does: a rule for all removes those before it, and
// a deny removes the same allow.
func inForce(rules []specs.LinuxDeviceCgroup) []string {
	number := func(n *int64) string {
		if n == nil {
			return "*"
		}
		return fmt.Sprint(*n)
	}
	var all []string
	for _, r := range rules {
		device := r.Type + " " + number(r.Major) + ":" + number(r.Minor)
		switch {
		case r.Type == "" || r.Type == "a":
			all = []string{fmt.Sprintf("%v all", r.Allow)}
		case r.Allow:
			all = append(all, device+" "+r.Access)
		default:
			all = slices.DeleteFunc(all, func(a string) bool { return strings.HasPrefix(a, device+" ") })
		}
	}
	return all
}

// differences are the facts of a that b lacks. A rule that allows /dev/null, as every engine's
// rules do, does not count.
func differences(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(f string) bool {
		return slices.Contains(b, f) ||
			strings.HasPrefix(f, "rule c 1:3 ")
	})
}

// The following tests compare the two translations on all sorts of specs, by what request.Find sees
// in the result.

var (
	machine = request.NodeFacts{Host: host.Host{Dev: "/dev", Sys: "/sys"},
		Majors: func() (map[string]int, error) { return map[string]int{"nvidia-uvm": 508}, nil },
		DRM:    func() (map[int]bool, error) { return map[int]bool{128: true}, nil },
		Policy: grant.Policy{StateDir: "/var/lib/gpuledger", RunDir: "/run/gpuledger",
			Rules: grant.Rules{DeviceEnv: []string{"NVIDIA_VISIBLE_DEVICES"}, Ungranted: grant.Hide,
				Privileged: grant.Strip}}}
	inventory = grant.Inventory{Majors: map[string]int{"nvidia-uvm": 508}, GPUs: []grant.GPU{
		{UUID: "GPU-0", Index: 0, Minor: 0, Memory: 16 * grant.GiB, Health: grant.Healthy},
		{UUID: "GPU-1", Index: 1, Minor: 1, Memory: 16 * grant.GiB, Health: grant.Healthy}}}
	view = grant.View{Now: time.Unix(1e9, 0), Grants: []grant.Grant{
		{ID: "g-abcdefghijkl", Owner: "pod:u/c", Mode: grant.Limit, Strength: grant.StrengthNone,
			GPUs: []grant.Share{{UUID: "GPU-0", Memory: grant.GiB}}}}}
)

func TestBothTranslationsGiveTheSameAccess(t *testing.T) {
	expressed, refused := 0, 0
	property := func(t *rapid.T) {
		spec := anySpec(t)
		before := marshal(t, spec)
		verdict := admission.Decide(found(t, before), view, inventory, machine.Policy)
		if !verdict.Touches() {
			return
		}
		a, err := carries.Container(verdict, container(spec))
		var inexpressible *adjust.Inexpressible
		if errors.As(err, &inexpressible) {
			refused++
			return
		}
		expressed++
		oci, ociErr := edit.OCI(before, verdict)
		nri, nriErr := adjust.Apply(before, a)
		if err := errors.Join(err, ociErr, nriErr); err != nil {
			t.Fatal(err)
		}
		if got, want := ways(t, nri), ways(t, oci); !slices.Equal(got, want) {
			t.Fatalf("through NRI it reaches %q, through OCI %q, of\n%s", got, want, before)
		}
	}
	// A hundred specs may lack one of the two by chance, a thousand do not.
	for round := 0; round < 10 && !t.Failed() && (expressed == 0 || refused == 0); round++ {
		rapid.Check(t, property)
	}
	if expressed == 0 || refused == 0 {
		t.Errorf("%d verdicts were expressed and %d were not: the specs are not of all sorts", expressed,
			refused)
	}
}

func anySpec(t *rapid.T) specs.Spec {
	n := func(n int64) *int64 { return &n }
	allow := func(minor *int64) specs.LinuxDeviceCgroup {
		return specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: n(195), Minor: minor, Access: "rw"}
	}
	spec := specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{Resources: &specs.LinuxResources{}},
		Annotations: map[string]string{}}
	spec.Process.Env = rapid.SliceOfN(rapid.SampledFrom([]string{
		"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_GDS=enabled",
		"CUDA_VERSION=8", "CUDA_MPS_A=1"}), 0, 4).Draw(t, "env")
	spec.Linux.Devices = rapid.SliceOfN(rapid.SampledFrom([]specs.LinuxDevice{
		{Path: "/dev/nvidia0", Type: "c", Major: 195}, {Path: "/dev/nvidia1", Type: "c",
			Major: 195, Minor: 1},
		{Path: "/dev/nvidia-modeset", Type: "c", Major: 195, Minor: 254},
		{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229}}), 0, 3).Draw(t, "devices")
	rules := []specs.LinuxDeviceCgroup{{Access: "rwm"}}
	spec.Linux.Resources.Devices = append(rules,
		rapid.SliceOfN(rapid.SampledFrom([]specs.LinuxDeviceCgroup{
			allow(n(0)), allow(n(1)), allow(n(254)), {Allow: true, Access: "rwm"}}), 0,
			3).Draw(t, "rules")...)
	if rapid.Bool().Draw(t, "admin") {
		spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_SYS_ADMIN"}}
	}
	if rapid.IntRange(0, 4).Draw(t, "hook") == 0 {
		spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/usr/bin/nvidia-ctk"}}}
	}
	if rapid.IntRange(0, 4).Draw(t, "mount") == 0 {
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/var/run/nvidia-container-devices/0",
			Source: "/dev/null", Type: "bind"})
	}
	if rapid.Bool().Draw(t, "granted") {
		request.WriteIdentity(spec.Annotations, grant.Containerd, grant.Identity{UID: "u", Container: "c"})
	}
	return spec
}

func found(t *rapid.T, config []byte) grant.Request {
	spec, err := request.Parse(config)
	if err != nil {
		t.Fatal(err)
	}
	r, err := request.Find(spec, request.Caller{Container: grant.Container{
		Engine: grant.Containerd, ID: "c1"}}, machine)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ways are the hits of request.Find, in no order and without the rules' numbers in the list.
func ways(t *rapid.T, config []byte) []string {
	var all []string
	for _, h := range found(t, config).Hits {
		vector, _, _ := strings.Cut(h.Vector, ":")
		way := fmt.Sprintf("%s %s %v", vector, h.Value, h.Node)
		if !slices.Contains(all, way) {
			all = append(all, way)
		}
	}
	slices.Sort(all)
	return all
}
