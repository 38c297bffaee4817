package edit_test

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	cdiapi "tags.cncf.io/container-device-interface/pkg/cdi"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/edit"
	"github.com/gpuledger/gpuledger/internal/edit/adjust"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// A verdict's edits are one value with several translations: each gives the container the same.

// given is what a container got from the edits.
type given struct {
	Env     []string
	Devices []specs.LinuxDevice
	Rules   []specs.LinuxDeviceCgroup
	Mounts  []specs.Mount
	Hooks   *specs.Hooks
}

// translations are the ways in which a container can get a verdict's edits. Each takes an ordinary
// spec and returns the edited one.
var translations = map[string]func(*testing.T, specs.Spec, grant.Verdict) specs.Spec{
	"OCI spec": func(t *testing.T, spec specs.Spec, v grant.Verdict) specs.Spec {
		config, err := edit.OCI(encoded(t, spec), v)
		if err != nil {
			t.Fatal(err)
		}
		return decoded(t, config)
	},
	"CDI": func(t *testing.T, spec specs.Spec, v grant.Verdict) specs.Spec {
		edits, err := edit.CDI(v)
		if err != nil {
			t.Fatal(err)
		}
		editor := cdiapi.ContainerEdits{ContainerEdits: &edits}
		if err := editor.Validate(); err != nil {
			t.Fatal(err)
		}
		spec = decoded(t, encoded(t, spec)) // it edits in place
		if err := editor.Apply(&spec); err != nil {
			t.Fatal(err)
		}
		return spec
	},
	"NRI": func(t *testing.T, spec specs.Spec, v grant.Verdict) specs.Spec {
		adjustment, err := adjust.Support{Rules: true}.Container(v,
			&api.Container{Id: "c1", Env: spec.Process.Env})
		if err != nil {
			t.Fatal(err)
		}
		config, err := adjust.Apply(encoded(t, spec), adjustment)
		if err != nil {
			t.Fatal(err)
		}
		return decoded(t, config)
	},
}

func ordinarySpec() specs.Spec {
	return specs.Spec{Process: &specs.Process{Env: []string{"PATH=/bin"},
		User: specs.User{UID: 1000, GID: 1000}}, Mounts: []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux: &specs.Linux{Resources: &specs.LinuxResources{
			Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}}}
}

func TestTranslationsGiveTheSameAccess(t *testing.T) {
	for _, mode := range grant.Modes {
		for name, share := range map[string][]grant.Share{
			"one GPU": {{UUID: "GPU-0"}}, "two GPUs": {{UUID: "GPU-0"}, {UUID: "GPU-1", Index: 1}}} {
			v := admission.Offer(grant.Grant{ID: "g-abcdefghijkl", Owner: grant.Bearer, Mode: mode,
				GPUs: share}, time.Unix(1e9, 0), inventory, node.Policy)
			if v.Kind != grant.Admit || len(v.Edits.DeviceNodes) == 0 {
				t.Fatalf("%s %s: %+v", mode, name, v)
			}
			v.Edits.Mounts = append(v.Edits.Mounts, &cdispec.Mount{
				HostPath: "/usr/lib/libcuda.so.1", ContainerPath: "/lib/libcuda.so.1",
				Options: []string{"ro", "nosuid", "nodev", "bind"}})
			v.Edits.Hooks = append(v.Edits.Hooks, grant.Limiter{
				Hook: "/usr/bin/gpuledger-hook", Env: "GPULEDGER_CONFIG=/etc/g.toml"}.Edit())
			want := got(translations["OCI spec"](t, ordinarySpec(), v))
			for way, translate := range translations {
				if got := got(translate(t, ordinarySpec(), v)); !reflect.DeepEqual(got, want) {
					t.Errorf("%s, %s, by %s:\n%+v\nand by OCI spec\n%+v", mode, name, way, got, want)
				}
			}
		}
	}
}

// got reads what a spec gives, without what expresses the same in another form.
func got(spec specs.Spec) given {
	mounts := slices.Clone(spec.Mounts)
	for i := range mounts {
		if slices.Contains(mounts[i].Options, "bind") {
			mounts[i].Type = "" // the option decides
		}
	}
	slices.SortFunc(mounts, func(a, b specs.Mount) int {
		return strings.Compare(a.Destination, b.Destination)
	})
	return given{spec.Process.Env, spec.Linux.Devices, spec.Linux.Resources.Devices, mounts, spec.Hooks}
}

// TestTheWrapperAcceptsCDIsEdits: an engine's CDI support edits first and the wrapper after it.
func TestTheWrapperAcceptsCDIsEdits(t *testing.T) {
	v := admission.Offer(ledger.Grants[0], ledger.Now, inventory, node.Policy)
	alone := translations["OCI spec"](t, ordinarySpec(), v)
	after := translations["OCI spec"](t, translations["CDI"](t, ordinarySpec(), v), v)
	if !reflect.DeepEqual(got(after), got(alone)) {
		t.Errorf("after CDI\n%+v\nand without\n%+v", got(after), got(alone))
	}
}

// TestOnlyAnOCISpecHidesPaths: neither CDI's edits nor NRI's adjustments can express it. Hidden
// paths give no access, so an admission without them is still correct.
func TestOnlyAnOCISpecHidesPaths(t *testing.T) {
	hidden := []string{"/proc/driver/nvidia/gpus/0000:02:00.0"}
	v := admission.Offer(ledger.Grants[0], ledger.Now, inventory, node.Policy)
	v.Masked = hidden
	for way, translate := range translations {
		masked := translate(t, ordinarySpec(), v).Linux.MaskedPaths
		if hides := way == "OCI spec"; hides != slices.Equal(masked, hidden) || !hides && masked != nil {
			t.Errorf("by %s hidden are %q", way, masked)
		}
	}
}

func TestCDIRefusesWhatItCannotExpress(t *testing.T) {
	mode := os.FileMode(0o666)
	gpu := &cdispec.DeviceNode{Path: "/dev/nvidia0", HostPath: "/dev/nvidia0", Type: "c", Major: 195,
		FileMode: &mode, Permissions: "rw"}
	ofGPU := grant.DeviceRule{Allow: true, Type: 'c', Major: 195, Access: "rw"}
	for name, v := range map[string]grant.Verdict{
		"a refusal":               {Kind: grant.Refused},
		"a pass":                  {Kind: grant.Pass},
		"a removal":               {Kind: grant.Admit, Removed: []grant.Removal{{Kind: grant.RemoveEnv, Name: "X"}}},
		"rules that stand alone":  {Kind: grant.Admit, Narrow: true},
		"a rule without a node":   {Kind: grant.Admit, Rules: []grant.DeviceRule{ofGPU}},
		"a rule that denies":      {Kind: grant.Admit, Edits: cdispec.ContainerEdits{DeviceNodes: []*cdispec.DeviceNode{gpu}}, Rules: []grant.DeviceRule{{Type: 'c', Major: 195, Access: "rw"}}},
		"a rule for more than it": {Kind: grant.Admit, Edits: cdispec.ContainerEdits{DeviceNodes: []*cdispec.DeviceNode{gpu}}, Rules: []grant.DeviceRule{{Allow: true, Type: 'c', Major: 195, Minor: -1, Access: "rw"}}},
	} {
		if edits, err := edit.CDI(v); err == nil {
			t.Errorf("%s becomes %+v", name, edits)
		}
	}
	fine := grant.Verdict{Kind: grant.Admit, Edits: cdispec.ContainerEdits{
		DeviceNodes: []*cdispec.DeviceNode{gpu}}, Rules: []grant.DeviceRule{ofGPU}}
	edits, err := edit.CDI(fine)
	if err != nil || len(edits.DeviceNodes) != 1 || edits.DeviceNodes[0].HostPath != "" ||
		*edits.DeviceNodes[0].UID != 0 {
		t.Errorf("%v: %+v", err, edits)
	}
	if gpu.HostPath == "" || gpu.UID != nil {
		t.Error("the verdict itself was changed")
	}
	elsewhere := *gpu
	elsewhere.HostPath = "/run/nvidia/driver/dev/nvidia0"
	if written := edit.CDINodes([]*cdispec.DeviceNode{
		&elsewhere}); written[0].HostPath != elsewhere.HostPath {
		t.Error("a path of the host that is not the device's own is lost")
	}
}

func encoded(t *testing.T, spec specs.Spec) []byte {
	t.Helper()
	config, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func decoded(t *testing.T, config []byte) (spec specs.Spec) {
	t.Helper()
	if err := json.Unmarshal(config, &spec); err != nil {
		t.Fatal(err)
	}
	return spec
}
