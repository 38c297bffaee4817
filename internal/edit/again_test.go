package edit_test

import (
	"encoding/json"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/edit"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/request"
)

// The node scans an edited spec with the same code, and refuses if the second verdict differs from
// the first. This test tries all sorts of specs: none of them may reach that refusal.

var (
	node = request.NodeFacts{Host: host.Host{Dev: "/dev", Sys: "/sys"}, Majors: func() (map[string]int,
		error) {
		return map[string]int{"nvidia-uvm": 508, "nvidia-caps": 509}, nil
	},
		DRM: func() (map[int]bool, error) { return map[int]bool{128: true, 129: false}, nil },
		Policy: grant.Policy{StateDir: "/var/lib/gpuledger", RunDir: "/run/gpuledger",
			Rules: grant.Rules{DeviceEnv: []string{"NVIDIA_VISIBLE_DEVICES", "SWARM_GPU"}},
			Annotations: grant.Annotations{Dialects: []grant.Dialect{
				grant.DialectGPULedger, grant.DialectGPUShare}}}}
	inventory = grant.Inventory{Majors: map[string]int{"nvidia-uvm": 508}, GPUs: []grant.GPU{
		{UUID: "GPU-0", Index: 0, Minor: 0, Memory: 16 * grant.GiB, Health: grant.Healthy, Render: []string{"/dev/dri/renderD128"}},
		{UUID: "GPU-1", Index: 1, Minor: 1, Memory: 16 * grant.GiB, Health: grant.Healthy}}}
	ledger = grant.View{Now: time.Unix(1e9, 0), Grants: []grant.Grant{
		{ID: "g-abcdefghijkl", Owner: "pod:u/c", Mode: grant.Limit, Strength: grant.StrengthLibrary,
			GPUs: []grant.Share{{UUID: "GPU-0", Memory: grant.GiB}}}}}
)

func specsOfAllSorts() *rapid.Generator[specs.Spec] {
	number := func(n int64) *int64 { return &n }
	rule := rapid.SampledFrom([]specs.LinuxDeviceCgroup{
		{Allow: true, Type: "c", Access: "m"}, {Allow: true, Type: "c", Major: number(1),
			Minor: number(3), Access: "rwm"},
		{Allow: true, Type: "c", Major: number(195), Minor: number(0), Access: "rwm"},
		{Allow: true, Type: "c", Major: number(195), Minor: number(255), Access: "r"},
		{Allow: true, Type: "c", Major: number(195), Minor: number(254), Access: "rw"},
		{Allow: true, Type: "c", Major: number(508), Minor: number(0), Access: "rw"},
		{Allow: true, Type: "c", Major: number(226), Minor: number(128), Access: "rw"},
		{Allow: true, Type: "c", Major: number(226), Minor: number(129), Access: "rw"},
		{Allow: true, Type: "c", Major: number(195), Minor: number(1), Access: "rw"},
		{Allow: true, Type: "c", Major: number(195), Access: "rw"},
		{Allow: false, Type: "c", Major: number(195), Minor: number(0), Access: "rwm"},
		{Allow: false, Type: "c", Major: number(195), Access: "rwm"},
		{Allow: true, Access: "rwm"}, {Allow: false, Access: "rwm"},
	})
	device := rapid.SampledFrom([]specs.LinuxDevice{
		{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0},
		{Path: "/dev/g", Type: "c", Major: 195, Minor: 0},
		{Path: "/dev/nvidiactl", Type: "c", Major: 195, Minor: 255},
		{Path: "/dev/nvidia-modeset", Type: "c", Major: 195, Minor: 254},
		{Path: "/dev/nvidia1", Type: "c", Major: 195, Minor: 1},
		{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229},
		{Path: "/dev/nvidia-uvm", Type: "c", Major: 508, Minor: 0},
	})
	env := rapid.SampledFrom([]string{"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0",
		"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=GPU-1", "CUDA_VERSION=8",
		"NVIDIA_MIG_CONFIG_DEVICES=all", "SWARM_GPU=0", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_GDS=enabled"})
	return rapid.Custom(func(t *rapid.T) specs.Spec {
		spec := specs.Spec{Process: &specs.Process{Env: rapid.SliceOfN(env, 0, 4).Draw(t, "env")},
			Linux: &specs.Linux{Resources: &specs.LinuxResources{}}, Annotations: map[string]string{}}
		spec.Linux.Devices = rapid.SliceOfN(device, 0, 3).Draw(t, "devices")
		spec.Linux.Resources.Devices = rapid.SliceOfN(rule, 0, 5).Draw(t, "rules")
		if rapid.IntRange(0, 3).Draw(t, "closed") > 0 {
			spec.Linux.Resources.Devices = append([]specs.LinuxDeviceCgroup{{Access: "rwm"}},
				spec.Linux.Resources.Devices...)
		}
		if rapid.Bool().Draw(t, "admin") {
			spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_SYS_ADMIN"}}
		}
		if rapid.IntRange(0, 3).Draw(t, "mount") == 0 {
			spec.Mounts = append(spec.Mounts, specs.Mount{
				Destination: "/host", Source: rapid.SampledFrom([]string{"/", "/dev", "/etc"}).Draw(t,
					"source"), Type: "bind", Options: []string{"rbind"}},
				specs.Mount{Destination: "/var/run/nvidia-container-devices/0",
					Source: "/dev/null", Type: "bind"})
		}
		if rapid.IntRange(0, 3).Draw(t, "hook") == 0 {
			spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{
				{Path: "/usr/bin/nvidia-ctk"}, {Path: "/bin/x"}}}
		}
		if rapid.Bool().Draw(t, "granted") {
			spec.Annotations["io.kubernetes.cri.sandbox-uid"],
				spec.Annotations["io.kubernetes.cri.container-name"] = "u", "c"
		}
		return spec
	})
}

func TestAnEditedSpecNeedsNoFurtherEdit(t *testing.T) {
	kinds := map[grant.VerdictKind]int{}
	rapid.Check(t, func(t *rapid.T) {
		config, err := json.Marshal(specsOfAllSorts().Draw(t, "spec"))
		if err != nil {
			t.Fatal(err)
		}
		p := node.Policy
		p.Rules.Ungranted = rapid.SampledFrom([]grant.Ungranted{
			grant.Hide, grant.RefuseUngranted}).Draw(t, "ungranted")
		p.Rules.Privileged = rapid.SampledFrom([]grant.Privileged{
			grant.Strip, grant.RefusePrivileged}).Draw(t, "privileged")
		first := judge(t, config, p)
		if kinds[first.Kind]++; !first.Touches() {
			return
		}
		edited := apply(t, config, first)
		if string(apply(t, edited, first)) != string(edited) {
			t.Fatalf("the same edits change it again:\n%s", edited)
		}
		second := judge(t, edited, p)
		if second.Kind != first.Kind || second.Narrow || first.Kind == grant.Pass && second.Touches() {
			t.Fatalf("first %s, then %s (%s) with %v removed of\n%s\nbecause of %s", first.Kind, second.Kind,
				second.Message, second.Removed, edited, config)
		}
		if string(apply(t, edited, second)) != string(edited) {
			t.Fatalf("the second verdict's edits change it again:\n%s", edited)
		}
		if again := judge(t, edited, p); again.Kind == grant.Admit {
			reachesOnlyGPU0(t, edited)
		}
	})
	if kinds[grant.Pass] == 0 || kinds[grant.Admit] == 0 || kinds[grant.Refused] == 0 {
		t.Errorf("the specs are not of all sorts: %v", kinds)
	}
}

func find(t *rapid.T, config []byte) grant.Request {
	spec, err := request.Parse(config)
	if err != nil {
		t.Fatalf("it can't be read: %v\n%s", err, config)
	}
	r, err := request.Find(spec, request.Caller{Container: grant.Container{
		Engine: grant.Containerd, ID: "c1"}}, node)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func judge(t *rapid.T, config []byte, p grant.Policy) grant.Verdict {
	return admission.Decide(find(t, config), ledger, inventory, p)
}

func apply(t *rapid.T, config []byte, v grant.Verdict) []byte {
	edited, err := edit.OCI(config, v)
	if err != nil {
		t.Fatal(err)
	}
	return edited
}

func reachesOnlyGPU0(t *rapid.T, config []byte) {
	for _, h := range find(t, config).Hits {
		n := h.Node
		own := n.Class == grant.ClassGPU && n.Minor == 0 || n.Class == grant.ClassControl ||
			n.Class == grant.ClassUVM || n.Class == grant.ClassDRM && n.Minor == 128
		if !own && h.Vector != "env:NVIDIA_VISIBLE_DEVICES" {
			t.Fatalf("it still has %s (%s)", h.Vector, h.Value)
		}
	}
}
