package request

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

func annotated(pairs ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

var (
	criKeys = annotated("io.kubernetes.cri.container-type", "container", "io.kubernetes.cri.sandbox-uid",
		"uid-1", "io.kubernetes.cri.sandbox-namespace", "team",
		"io.kubernetes.cri.sandbox-name", "job-0", "io.kubernetes.cri.container-name", "train")
	crioKeys = annotated("io.container.manager", "cri-o", "io.kubernetes.cri-o.ContainerType", "container",
		"io.kubernetes.pod.uid", "uid-2", "io.kubernetes.pod.namespace", "team",
		"io.kubernetes.pod.name", "job-0", "io.kubernetes.container.name", "train")
)

func merged(parts ...map[string]string) map[string]string {
	m := map[string]string{}
	for _, part := range parts {
		maps.Copy(m, part)
	}
	return m
}

func TestEnginesProveIdentitiesByKnownKeys(t *testing.T) {
	for _, e := range []grant.Engine{grant.Containerd, grant.CRIO, grant.Podman, grant.Docker,
		grant.NoEngine, ""} {
		if _, trusted := keysOf(e); trusted != e.ProvesPods() {
			t.Errorf("%s: its keys are trusted: %v, it proves pods: %v", e, trusted, e.ProvesPods())
		}
	}
}

func TestIdentityComesFromKeysThatTheEngineWritesLast(t *testing.T) {
	cri := grant.Identity{UID: "uid-1", Namespace: "team", Pod: "job-0", Container: "train"}
	crio := grant.Identity{UID: "uid-2", Namespace: "team", Pod: "job-0", Container: "train"}
	for _, c := range []struct {
		name        string
		engine      grant.Engine
		annotations map[string]string
		want        grant.Identity
		sandbox     bool
	}{
		{name: "containerd", engine: grant.Containerd, annotations: criKeys, want: cri},
		{name: "containerd before 1.6.11 tells no UID", engine: grant.Containerd,
			annotations: merged(criKeys, annotated("io.kubernetes.cri.sandbox-uid", "")),
			want:        grant.Identity{Namespace: "team", Pod: "job-0", Container: "train"}},
		{name: "containerd's sandbox", engine: grant.Containerd,
			annotations: merged(criKeys, annotated("io.kubernetes.cri.container-type", "sandbox")),
			sandbox:     true},
		{name: "containerd, a pod that brings CRI-O's keys", engine: grant.Containerd,
			annotations: merged(crioKeys, criKeys), want: cri},
		{name: "containerd, a pod that brings CRI-O's sandbox key", engine: grant.Containerd,
			annotations: merged(criKeys, annotated("io.kubernetes.cri-o.ContainerType", "sandbox")),
			want:        cri},
		{name: "CRI-O", engine: grant.CRIO, annotations: crioKeys, want: crio},
		{name: "CRI-O's sandbox", engine: grant.CRIO, annotations: merged(crioKeys,
			annotated("io.kubernetes.cri-o.ContainerType", "sandbox")), sandbox: true},
		{name: "CRI-O, a pod that brings containerd's keys", engine: grant.CRIO,
			annotations: merged(criKeys, crioKeys), want: crio},
		{name: "CRI-O, a pod that brings containerd's sandbox key", engine: grant.CRIO,
			annotations: merged(crioKeys, annotated("io.kubernetes.cri.container-type", "sandbox")),
			want:        crio},
		{name: "CRI-O, keys that it writes on sandboxes only", engine: grant.CRIO,
			annotations: merged(crioKeys, annotated("io.kubernetes.cri-o.Namespace", "kube-system",
				"io.kubernetes.cri-o.KubeName", "x", "io.kubernetes.cri-o.ContainerName", "x")), want: crio},
		{name: "Podman, a user who says he is CRI-O", engine: grant.Podman, annotations: crioKeys},
		{name: "Podman, a user who says he is a sandbox", engine: grant.Podman,
			annotations: annotated("io.kubernetes.cri-o.ContainerType", "sandbox")},
		{name: "Docker, a user who brings containerd's keys", engine: grant.Docker, annotations: criKeys},
		{name: "no engine", engine: grant.NoEngine, annotations: merged(criKeys, crioKeys)},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			s.caller.Container.Engine, s.spec.Annotations = c.engine, c.annotations
			r := s.find()
			if r.Container.Pod != c.want || r.Sandbox != c.sandbox || r.Container.ID != "c1" {
				t.Errorf("got %+v, sandbox %v; want %+v, %v", r.Container.Pod, r.Sandbox, c.want, c.sandbox)
			}
		})
	}
}

func TestAnnotationsThatInjectorsObey(t *testing.T) {
	set := func(key, value string) func(*scene) {
		return func(s *scene) { s.spec.Annotations = annotated(key, value) }
	}
	v1 := func(setup func(*scene)) func(*scene) {
		return func(s *scene) { s.devicesOnV1(); setup(s) }
	}
	check(t, []row{
		{"a CDI name of NVIDIA's", set("cdi.k8s.io/x", "nvidia.com/gpu=0"),
			[]string{"cdi-device-outside-grant | annotation:cdi.k8s.io/x | nvidia.com/gpu=0 | gpus=0 | " +
				"-annotation:cdi.k8s.io/x"}},
		{"for all GPUs", set("cdi.k8s.io/x", "nvidia.com/gpu=all"),
			[]string{"cdi-device-outside-grant | annotation:cdi.k8s.io/x | nvidia.com/gpu=all | never"}},
		{"for all by our name, which no file of ours has", set("cdi.k8s.io/x", "gpuledger.dev/gpu=all"),
			[]string{"cdi-device-outside-grant | annotation:cdi.k8s.io/x | gpuledger.dev/gpu=all | never"}},
		{"for no GPU", set("cdi.k8s.io/x", "nvidia.com/gpu="),
			[]string{"cdi-device-outside-grant | annotation:cdi.k8s.io/x | nvidia.com/gpu= | never"}},
		{"beside a reference, which has to stay",
			set("cdi.k8s.io/x", "gpuledger.dev/grant=g-abcdefghijkl."+secret+",nvidia.com/gpu=0"),
			[]string{"cdi-device-outside-grant | annotation:cdi.k8s.io/x | " +
				"gpuledger.dev/grant=REFERENCE,nvidia.com/gpu=0 | never"}},
		{"of a vendor below NVIDIA", set("cdi.k8s.io/x", "management.nvidia.com/gpu=all"),
			[]string{"cdi-device-outside-grant | annotation:cdi.k8s.io/x | " +
				"management.nvidia.com/gpu=all | never"}},
		{"by the key of NVIDIA's NRI plugin", set("nvidia.cdi.k8s.io/container.train", "nvidia.com/gpu=0"),
			[]string{"cdi-device-outside-grant | annotation:nvidia.cdi.k8s.io/container.train | " +
				"nvidia.com/gpu=0 | gpus=0 | -annotation:nvidia.cdi.k8s.io/container.train"}},
		{"of the device plugin's vendor", set("cdi.k8s.io/x", "k8s.device-plugin.nvidia.com/gpu=GPU-a"),
			[]string{"cdi-device-outside-grant | annotation:cdi.k8s.io/x | " +
				"k8s.device-plugin.nvidia.com/gpu=GPU-a | gpus=GPU-a | -annotation:cdi.k8s.io/x"}},
		{"of NVIDIA's other classes", set("cdi.k8s.io/x", "nvidia.com/imex-channel=0"),
			[]string{"cdi-device-outside-grant | annotation:cdi.k8s.io/x | " +
				"nvidia.com/imex-channel=0 | never"}},
		{"with white space and an end of line", set("cdi.k8s.io/x", "\n nvidia.com/mig=0:1 ,"),
			[]string{"cdi-device-outside-grant | annotation:cdi.k8s.io/x | \n nvidia.com/mig=0:1 , | never"}},
		{"of another vendor's GPU, which is not the ledger's", set("cdi.k8s.io/x", "amd.com/gpu=0"), nil},
		{"a GPU by our name, which a grant can cover",
			set("cdi.k8s.io/x", "gpuledger.dev/gpu=0, gpuledger.dev/gpu=GPU-1"), []string{
				"cdi-device-outside-grant | annotation:cdi.k8s.io/x | gpuledger.dev/gpu=0, " +
					"gpuledger.dev/gpu=GPU-1 | gpus=0+GPU-1"}},
		{"a GPU by our name beside NVIDIA's", set("cdi.k8s.io/x", "gpuledger.dev/gpu=0,nvidia.com/gpu=0"),
			[]string{
				"cdi-device-outside-grant | annotation:cdi.k8s.io/x | " +
					"gpuledger.dev/gpu=0,nvidia.com/gpu=0 | gpus=0+0 | -annotation:cdi.k8s.io/x"}},
		{"a kind of our vendor's that is none", set("cdi.k8s.io/x", "gpuledger.dev/all=all"),
			[]string{"cdi-device-outside-grant | annotation:cdi.k8s.io/x | gpuledger.dev/all=all | never"}},
		{"a grant by its CDI name: a reference and no more",
			set("cdi.k8s.io/x", "gpuledger.dev/grant=g-abcdefghijkl."+secret), nil},
		{"a grant beside a GPU: the reference stays, and is not told",
			set("cdi.k8s.io/x", "gpuledger.dev/grant=g-abcdefghijkl."+secret+",gpuledger.dev/gpu=0"),
			[]string{
				"cdi-device-outside-grant | annotation:cdi.k8s.io/x | " +
					"gpuledger.dev/grant=REFERENCE,gpuledger.dev/gpu=0 | gpus=0"}},
		{"among others", set("cdi.k8s.io/x", "vendor.example/net=1, nvidia.com/gpu=0"),
			[]string{"cdi-device-outside-grant | annotation:cdi.k8s.io/x | vendor.example/net=1, " +
				"nvidia.com/gpu=0 | gpus=0 | -annotation:cdi.k8s.io/x"}},
		{"of another vendor", set("cdi.k8s.io/x", "vendor.example/net=1"), nil},
		{"of a vendor whose name only ends alike", set("cdi.k8s.io/x", "notnvidia.com/net=1"), nil},
		{"a CDI name under a key that nobody obeys", set("example/cdi", "nvidia.com/gpu=0"), nil},
		{"systemd's device policy", set("org.systemd.property.DevicePolicy", "'auto'"),
			[]string{"gpu-device-rule | annotation:org.systemd.property.DevicePolicy | 'auto' | never"}},
		{"systemd's device list", set("org.systemd.property.DeviceAllow", "[('char-nvidia', 'rw')]"),
			[]string{"gpu-device-rule | annotation:org.systemd.property.DeviceAllow | [('char-nvidia', " +
				"'rw')] | never"}},
		{"crun's sub-cgroup that is outside", set("run.oci.delegate-cgroup", "../../x"),
			[]string{"gpu-device-rule | annotation:run.oci.delegate-cgroup | ../../x | never"}},
		{"and under systemd", set("run.oci.systemd.subgroup", "x/../../.."),
			[]string{"gpu-device-rule | annotation:run.oci.systemd.subgroup | x/../../.. | never"}},
		{"crun's sub-cgroup below", set("run.oci.delegate-cgroup", "a/..b"), nil},
		{"no sub-cgroup", set("run.oci.systemd.subgroup", ""), nil},
		{"crun's handler krun on cgroup v1", v1(set("run.oci.handler", "krun")),
			[]string{"gpu-device-rule | annotation:run.oci.handler | krun | never"}},
		{"the same on cgroup v2", set("run.oci.handler", "krun"), nil},
		{"the same on a machine without a GPU", v1(func(s *scene) {
			s.node.Majors = func() (map[string]int, error) { return nil, nil }
			set("run.oci.handler", "krun")(s)
		}), nil},
		{"the same where no device rule takes effect", v1(func(s *scene) {
			s.unruled()
			set("run.oci.handler", "krun")(s)
		}), nil},
		{"another handler of crun's on cgroup v1", v1(set("run.oci.handler", "wasm")), nil},
		{"systemd's processes of a unit", set("org.systemd.property.PIDs", "[uint32 1]"),
			[]string{"gpu-device-rule | annotation:org.systemd.property.PIDs | [uint32 1] | never"}},
		{"the same by file descriptors", set("org.systemd.property.PIDFDs", "[@h 3]"),
			[]string{"gpu-device-rule | annotation:org.systemd.property.PIDFDs | [@h 3] | never"}},
		{"another property of systemd's", set("org.systemd.property.TimeoutStopUSec", "uint64 1"), nil},
	})
}

// TestFilesThatTheRuntimeUsesAsRoot pass, and are recorded.
func TestFilesThatTheRuntimeUsesAsRoot(t *testing.T) {
	for _, key := range []string{"run.oci.hooks.stdout", "run.oci.hooks.stderr", "run.oci.seccomp.plugins",
		"org.criu.config"} {
		s := newScene(t)
		s.spec.Annotations = annotated(key, "/etc/ld.so.preload", "run.oci.handler", "krun",
			"run.oci.keep_original_groups", "1")
		if r := s.find(); !slices.Equal(r.NodeRoot, []string{"annotation:" + key}) || len(r.Hits) > 0 {
			t.Errorf("%s: node-root %q, hits %v", key, r.NodeRoot, r.Hits)
		}
	}
}

// TestTheSliceThatAGrantDrops: it gives nothing, but with a grant it could not be told any more
// whether the grant is in use.
func TestTheSliceThatAGrantDrops(t *testing.T) {
	s := newScene(t)
	s.spec.Annotations = annotated("org.systemd.property.Slice", "'system.slice'")
	want := []grant.Removal{{Kind: grant.RemoveAnnotation, Name: "org.systemd.property.Slice"}}
	if r := s.find(); len(r.Hits) > 0 || len(r.NodeRoot) > 0 || !reflect.DeepEqual(r.Dropped, want) {
		t.Errorf("hits %v, node-root %v, dropped %v", r.Hits, r.NodeRoot, r.Dropped)
	}
}

// TestPropertiesOfUnits: what concerns the container's own unit passes, what can start and end
// others is recorded.
func TestPropertiesOfUnits(t *testing.T) {
	own := "CPUWeight CPUQuotaPerSecUSec AllowedCPUs AllowedMemoryNodes StartupCPUWeight MemoryMax " +
		"MemorySwapMax TasksMax IOWeight IOReadBandwidthMax BlockIOWeight IPAddressDeny OOMPolicy " +
		"ManagedOOMSwap " +
		"Delegate DelegateControllers DelegateSubgroup DisableControllers TimeoutStopUSec TimeoutStopSec " +
		"RuntimeMaxUSec KillMode KillSignal SendSIGKILL CollectMode AddRef Description DefaultDependencies " +
		"After Before User Group LogLevelMax"
	others := "Conflicts OnFailure OnSuccess FailureAction SuccessAction JobTimeoutAction Wants Requires " +
		"Requisite BindsTo PartOf Upholds PropagatesStopTo StopPropagatedFrom JoinsNamespaceOf BPFProgram " +
		"Controller Newer"
	for _, name := range strings.Fields(own + " " + others) {
		s := newScene(t)
		s.spec.Annotations = annotated("org.systemd.property."+name, "'x'")
		var want []string
		if strings.Contains(" "+others+" ", " "+name+" ") {
			want = []string{"annotation:org.systemd.property." + name}
		}
		if r := s.find(); !slices.Equal(r.NodeRoot, want) || len(r.Hits) > 0 {
			t.Errorf("%s: node-root %q, hits %v", name, r.NodeRoot, r.Hits)
		}
	}
}

func TestHooksOfInjectors(t *testing.T) {
	hook := func(path string, args ...string) []specs.Hook { return []specs.Hook{{Path: path, Args: args}} }
	stage := func(h specs.Hooks) func(*scene) { return func(s *scene) { s.spec.Hooks = &h } }
	const found = "gpu-hook | hook:/usr/bin/nvidia-cdi-hook | chmod | drop | -hook:/usr/bin/nvidia-cdi-hook"
	nvidia := hook("/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook", "chmod")
	check(t, []row{
		{"none", stage(specs.Hooks{}), nil},
		//lint:ignore SA1019 what NVIDIA's toolkit writes
		{"prestart", stage(specs.Hooks{Prestart: nvidia}), []string{found}},
		{"createRuntime", stage(specs.Hooks{CreateRuntime: nvidia}), []string{found}},
		{"createContainer", stage(specs.Hooks{CreateContainer: nvidia}), []string{found}},
		{"startContainer", stage(specs.Hooks{StartContainer: nvidia}), []string{found}},
		{"poststart", stage(specs.Hooks{Poststart: nvidia}), []string{found}},
		{"poststop", stage(specs.Hooks{Poststop: nvidia}), []string{found}},
		{"the toolkit's other programs", stage(specs.Hooks{
			CreateContainer: append(append(hook("/usr/bin/nvidia-ctk"),
				hook("/opt/nvidia-cdi-hook", "a", "b")...),
				append(hook("/x/nvidia-ctk.real"), hook("/x/nvidia-container-cli")...)...)}), []string{
			"gpu-hook | hook:/usr/bin/nvidia-ctk |  | drop | -hook:/usr/bin/nvidia-ctk",
			"gpu-hook | hook:/opt/nvidia-cdi-hook | b | drop | -hook:/opt/nvidia-cdi-hook",
			"gpu-hook | hook:/x/nvidia-ctk.real |  | drop | -hook:/x/nvidia-ctk.real",
			"gpu-hook | hook:/x/nvidia-container-cli |  | drop | -hook:/x/nvidia-container-cli"}},
		{"somebody else's", stage(specs.Hooks{CreateRuntime: hook("/usr/libexec/oci/hooks.d/oci-systemd-hook",
			"nvidia-ctk")}), nil},
	})
}

// A hooks directory puts the toolkit's old hook into every container, those without a GPU included.
func TestTheLegacyHookAsksForNothingByItself(t *testing.T) {
	for _, path := range []string{"/usr/bin/nvidia-container-runtime-hook",
		"/usr/bin/nvidia-container-toolkit", "/usr/local/nvidia/toolkit/nvidia-container-runtime-hook.real"} {
		s := newScene(t)
		//lint:ignore SA1019 what NVIDIA's toolkit writes
		s.spec.Hooks = &specs.Hooks{Prestart: []specs.Hook{{Path: path, Args: []string{"x", "prestart"}}}}
		want := []grant.Removal{{Kind: grant.RemoveHook, Name: path}}
		if r := s.find(); len(r.Hits) > 0 || !reflect.DeepEqual(r.Dropped, want) {
			t.Errorf("%s: hits %v, dropped %v", path, r.Hits, r.Dropped)
		}
		s.env("NVIDIA_VISIBLE_DEVICES=all")
		s.wantHits("visible-devices-all | env:NVIDIA_VISIBLE_DEVICES | all | gpus=all | " +
			"-env:NVIDIA_VISIBLE_DEVICES")
	}
}

const secret = "00112233445566778899aabbccddeeff"

// The variable in the environment is that of the last CDI device, and each device's hook names its
// grant. So does an annotation for each resource of the device plugin.
func TestGrantsOfCDIDevices(t *testing.T) {
	s := newScene(t)
	s.spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{
		{Path: "/usr/bin/gpuledger-hook",
			Env: []string{"GPULEDGER_CONFIG=/x", "GPULEDGER_GRANT=g-aaaaaaaaaaaa"}},
		{Path: "/usr/bin/gpuledger-hook", Env: []string{"GPULEDGER_CONFIG=/x"}},
		{Path: "/usr/bin/gpuledger-hook", Env: []string{"GPULEDGER_GRANT=g-bbbbbbbbbbbb"}},
		{Path: "/usr/bin/gpuledger-hook", Env: []string{"GPULEDGER_GRANT=g-aaaaaaaaaaaa"}}},
		Poststop: []specs.Hook{{Path: "/bin/x", Env: []string{"GPULEDGER_GRANT=g-cccccccccccc"}}}}
	s.spec.Annotations = map[string]string{"gpuledger.dev/grant-of.gpuledger.dev_gpu": "g-dddddddddddd",
		"gpuledger.dev/grant-offer": "g-eeeeeeeeeeee"}
	want := []grant.Mention{given("annotation:gpuledger.dev/grant-of.gpuledger.dev_gpu", "g-dddddddddddd"),
		given("hook:gpuledger-hook", "g-aaaaaaaaaaaa"), given("hook:gpuledger-hook", "g-bbbbbbbbbbbb")}
	if got := s.find().Injected; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestReferencesToGrants(t *testing.T) {
	const id = "g-abcdefghijkl"
	ref := grant.Reference{ID: id, Secret: secret}
	for _, c := range []struct {
		name  string
		setup func(*scene)
		want  []grant.Mention
	}{
		{"none", func(*scene) {}, nil},
		{"by annotation, outside a pod", func(s *scene) {
			s.spec.Annotations["gpuledger.dev/grant"] = ref.String()
		},
			[]grant.Mention{{Source: "annotation:gpuledger.dev/grant", Asks: true, Reference: ref}}},
		{"by environment", func(s *scene) { s.env("GPULEDGER_GRANT=" + id) },
			[]grant.Mention{{Source: "env:GPULEDGER_GRANT", Asks: true, Reference: grant.Reference{ID: id}}}},
		{"by both", func(s *scene) {
			s.spec.Annotations["gpuledger.dev/grant"] = id
			s.env("GPULEDGER_GRANT=" + id)
		}, []grant.Mention{
			{Source: "annotation:gpuledger.dev/grant", Asks: true, Reference: grant.Reference{ID: id}},
			{Source: "env:GPULEDGER_GRANT", Asks: true, Reference: grant.Reference{ID: id}}}},
		{"in a pod, named", func(s *scene) {
			s.spec.Annotations = merged(criKeys, annotated("gpuledger.dev/grant.train", id))
		},
			[]grant.Mention{{Source: "annotation:gpuledger.dev/grant.train", Asks: true,
				Reference: grant.Reference{ID: id}}}},
		{"in a pod, for all: nobody asks by it", func(s *scene) {
			s.spec.Annotations = merged(criKeys, annotated("gpuledger.dev/grant", id))
		},
			[]grant.Mention{{Source: "annotation:gpuledger.dev/grant", Reference: grant.Reference{ID: id}}}},
		{"in a pod, for another container", func(s *scene) {
			s.spec.Annotations = merged(criKeys, annotated("gpuledger.dev/grant.sidecar", id))
		}, nil},
		{"in a pod, named and for all: the name counts", func(s *scene) {
			s.spec.Annotations = merged(criKeys, annotated("gpuledger.dev/grant", "g-zzzzzzzzzzzz",
				"gpuledger.dev/grant.train", id))
		}, []grant.Mention{{Source: "annotation:gpuledger.dev/grant.train", Asks: true,
			Reference: grant.Reference{ID: id}}}},
		{"by its CDI name in an annotation", func(s *scene) {
			s.spec.Annotations["cdi.k8s.io/x"] = "gpuledger.dev/grant=" + ref.String()
		},
			[]grant.Mention{{Source: "annotation:cdi.k8s.io/x", Asks: true, Reference: ref}}},
		{"the same again and again, at two places", func(s *scene) {
			again := strings.Repeat("gpuledger.dev/grant="+id+",gpuledger.dev/grant=x,", 1000)
			s.spec.Annotations["cdi.k8s.io/x"] = again + "gpuledger.dev/grant=" + ref.String()
			s.env("GPULEDGER_GRANT=" + id)
		}, []grant.Mention{
			{Source: "annotation:cdi.k8s.io/x", Asks: true, Reference: grant.Reference{ID: id}},
			{Source: "annotation:cdi.k8s.io/x", Asks: true, Malformed: "cannot read grant reference: want " +
				"ID or ID.SECRET as `gpuledger grant` printed it"},
			{Source: "annotation:cdi.k8s.io/x", Asks: true, Reference: ref},
			{Source: "env:GPULEDGER_GRANT", Asks: true, Reference: grant.Reference{ID: id}}}},
		{"by its CDI name in an annotation that is for nothing", func(s *scene) {
			s.spec.Annotations["example.com/x"] = "gpuledger.dev/grant=" + ref.String()
		}, nil},
		{"by its CDI name in a pod, whose containers all have the annotation", func(s *scene) {
			s.spec.Annotations = merged(criKeys, annotated("cdi.k8s.io/x", "gpuledger.dev/grant="+id))
		},
			[]grant.Mention{{Source: "annotation:cdi.k8s.io/x", Reference: grant.Reference{ID: id}}}},
		{"empty", func(s *scene) {
			s.spec.Annotations["gpuledger.dev/grant"] = ""
			s.env("GPULEDGER_GRANT=")
		}, nil},
		{"in a pod, named and empty: not that for all", func(s *scene) {
			s.spec.Annotations = merged(criKeys, annotated("gpuledger.dev/grant",
				id, "gpuledger.dev/grant.train", ""))
		}, nil},
		{"unreadable, with a secret in it", func(s *scene) { s.env("GPULEDGER_GRANT=" + secret) },
			[]grant.Mention{{Source: "env:GPULEDGER_GRANT", Asks: true,
				Malformed: "cannot read grant reference: want ID or ID.SECRET as `gpuledger " +
					"grant` printed it"}}},
		{"of duplicates in the environment the last one counts", func(s *scene) {
			s.env("GPULEDGER_GRANT=x", "GPULEDGER_GRANT="+id)
		},
			[]grant.Mention{{Source: "env:GPULEDGER_GRANT", Asks: true, Reference: grant.Reference{ID: id}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.setup(s)
			r := s.find()
			if !reflect.DeepEqual(r.References, c.want) {
				t.Errorf("got %+v, want %+v", r.References, c.want)
			}
			if strings.Contains(fmt.Sprint(r.Hits), secret) {
				t.Error("a hit shows the secret")
			}
		})
	}
}

func TestAllocationsOfAScheduler(t *testing.T) {
	own := func(pairs ...string) func(*scene) {
		return func(s *scene) { s.spec.Annotations = annotated(pairs...) }
	}
	share := func(env []string, pairs ...string) func(*scene) {
		return func(s *scene) { s.spec.Annotations = merged(criKeys, annotated(pairs...)); s.env(env...) }
	}
	const unreadable = `cannot read scheduler.framework.gpushare.allocation: want {"container": ` +
		`{"card": GiB}}`
	const uneven = `cannot read scheduler.framework.gpushare.allocation: want cards by index, each with ` +
		`the same whole number of GiB`
	jsonKey := "scheduler.framework.gpushare.allocation"
	for _, c := range []struct {
		name  string
		setup func(*scene)
		want  []grant.Allocation
	}{
		{"none", own(), nil},
		{"all four keys", own("gpuledger.dev/gpus", "GPU-a, 1", "gpuledger.dev/memory", "8GiB",
			"gpuledger.dev/compute", "30", "gpuledger.dev/mode", "limit"), []grant.Allocation{
			{Source: "annotation:gpuledger.dev/gpus", Own: true, Asks: true, GPUs: []string{"GPU-a", "1"}},
			{Source: "annotation:gpuledger.dev/memory", Own: true, Asks: true, Memory: 8 * grant.GiB},
			{Source: "annotation:gpuledger.dev/compute", Own: true, Asks: true, Compute: 30},
			{Source: "annotation:gpuledger.dev/mode", Own: true, Asks: true, Mode: grant.Limit}}},
		{"malformed", own("gpuledger.dev/gpus", " ,", "gpuledger.dev/memory", "8192", "gpuledger.dev/compute",
			"101", "gpuledger.dev/mode", "shared"), []grant.Allocation{
			{Source: "annotation:gpuledger.dev/gpus", Own: true, Asks: true, Malformed: `cannot read gpus " ,": want UUIDs or indexes, separated by commas`},
			{Source: "annotation:gpuledger.dev/memory", Own: true, Asks: true, Malformed: `cannot read size "8192": want a whole number and a unit of 1024: KiB, MiB, GiB or TiB, as 4GiB`},
			{Source: "annotation:gpuledger.dev/compute", Own: true, Asks: true, Malformed: `cannot read compute "101": want a percentage from 1 to 100`},
			{Source: "annotation:gpuledger.dev/mode", Own: true, Asks: true, Malformed: `cannot read mode: want exclusive or timeslice or limit or mps or mig, not "shared"`}}},
		{"variables, where no annotation says the same", func(s *scene) {
			s.env("GPULEDGER_MEMORY=4GiB", "GPULEDGER_GPUS=2", "GPULEDGER_MODE=")
			s.spec.Annotations = annotated("gpuledger.dev/memory", "8GiB", "gpuledger.dev/gpu", "1")
		}, []grant.Allocation{
			{Source: "env:GPULEDGER_GPUS", Own: true, Env: true, Asks: true, GPUs: []string{"2"}, Number: true},
			{Source: "annotation:gpuledger.dev/gpu", Own: true, Asks: true, GPUs: []string{"1"}},
			{Source: "annotation:gpuledger.dev/memory", Own: true, Asks: true, Memory: 8 * grant.GiB}}},
		{"a number, and what only looks like one", func(s *scene) {
			s.env("GPULEDGER_GPUS= 2")
			s.spec.Annotations = annotated("gpuledger.dev/gpu", "+1")
		}, []grant.Allocation{
			{Source: "env:GPULEDGER_GPUS", Own: true, Env: true, Asks: true, GPUs: []string{"2"}, Number: true},
			{Source: "annotation:gpuledger.dev/gpu", Own: true, Asks: true, GPUs: []string{"+1"}}}},
		{"no memory", own("gpuledger.dev/memory", "0GiB"), []grant.Allocation{
			{Source: "annotation:gpuledger.dev/memory", Own: true, Asks: true,
				Malformed: `cannot read memory "0GiB": want more than 0`}}},
		{"in a pod, named and for all", func(s *scene) {
			s.spec.Annotations = merged(criKeys, annotated("gpuledger.dev/gpus.train", "0",
				"gpuledger.dev/compute", "10", "gpuledger.dev/mode.sidecar", "mps"))
		}, []grant.Allocation{{Source: "annotation:gpuledger.dev/gpus.train", Own: true, Number: true,
			Asks: true, GPUs: []string{"0"}},
			{Source: "annotation:gpuledger.dev/compute", Own: true, Compute: 10}}},

		{"gpushare in GiB", share([]string{"ALIYUN_COM_GPU_MEM_CONTAINER=4"}, "ALIYUN_COM_GPU_MEM_IDX", "0",
			"ALIYUN_COM_GPU_MEM_POD", "4", "ALIYUN_COM_GPU_MEM_DEV", "15"),
			[]grant.Allocation{{Source: "annotation:ALIYUN_COM_GPU_MEM_IDX", Asks: true, GPUs: []string{"0"},
				Units: 4, Total: 15}}},
		{"gpushare for a container without a part", share(nil, "ALIYUN_COM_GPU_MEM_IDX", "0",
			"ALIYUN_COM_GPU_MEM_POD", "4"), nil},
		{"gpushare for a container whose part is 0", share([]string{"ALIYUN_COM_GPU_MEM_CONTAINER=0"},
			"ALIYUN_COM_GPU_MEM_IDX", "0"), nil},
		{"gpushare's environment alone, which the image can set",
			share([]string{"ALIYUN_COM_GPU_MEM_CONTAINER=4", "ALIYUN_COM_GPU_MEM_IDX=0"}), nil},
		{"gpushare, no number", share([]string{"ALIYUN_COM_GPU_MEM_CONTAINER=many"}, "ALIYUN_COM_GPU_MEM_IDX",
			"0"), []grant.Allocation{
			{Source: "annotation:ALIYUN_COM_GPU_MEM_IDX", Asks: true, GPUs: []string{"0"},
				Malformed: `cannot read ALIYUN_COM_GPU_MEM_CONTAINER "many": want a whole number above 0`}}},
		{"gpushare, an index of -1", share([]string{"ALIYUN_COM_GPU_MEM_CONTAINER=4"},
			"ALIYUN_COM_GPU_MEM_IDX", "-1"), []grant.Allocation{
			{Source: "annotation:ALIYUN_COM_GPU_MEM_IDX", Asks: true, GPUs: []string{"-1"}, Units: 4,
				Malformed: `cannot read ALIYUN_COM_GPU_MEM_IDX "-1": want a whole number above 0`}}},
		{"gpushare, an odd total", share([]string{"ALIYUN_COM_GPU_MEM_CONTAINER=4"}, "ALIYUN_COM_GPU_MEM_IDX",
			"1", "ALIYUN_COM_GPU_MEM_DEV", "99999999999"), []grant.Allocation{
			{Source: "annotation:ALIYUN_COM_GPU_MEM_IDX", Asks: true, GPUs: []string{"1"}, Units: 4,
				Malformed: `cannot read ALIYUN_COM_GPU_MEM_DEV "99999999999": want a whole number above 0`}}},

		{"gpushare's JSON", share(nil, jsonKey, `{"train":{"1":4,"0":4},"sidecar":{"0":1}}`),
			[]grant.Allocation{{Source: "annotation:" + jsonKey, Asks: true,
				GPUs: []string{"0", "1"}, Units: 4}}},
		{"gpushare's JSON for others", share(nil, jsonKey, `{"sidecar":{"0":1}}`), nil},
		{"gpushare's JSON with no card", share(nil, jsonKey, `{"train":{}}`), nil},
		{"gpushare's JSON, uneven", share(nil, jsonKey, `{"train":{"0":4,"1":5}}`),
			[]grant.Allocation{{Source: "annotation:" + jsonKey, Asks: true, GPUs: []string{"0", "1"},
				Units: 4, Malformed: uneven}}},
		{"gpushare's JSON, below 0", share(nil, jsonKey, `{"train":{"0":-4}}`),
			[]grant.Allocation{{Source: "annotation:" + jsonKey, Asks: true, GPUs: []string{"0"}, Units: -4,
				Malformed: uneven}}},
		{"gpushare's JSON, so much that bytes would overflow",
			share(nil, jsonKey, `{"train":{"0":17179869188}}`),
			[]grant.Allocation{{Source: "annotation:" + jsonKey, Asks: true, GPUs: []string{"0"},
				Units: 17179869188, Malformed: uneven}}},
		{"gpushare's JSON, a card by UUID", share(nil, jsonKey, `{"train":{"GPU-a":4}}`),
			[]grant.Allocation{{Source: "annotation:" + jsonKey, Asks: true, GPUs: []string{"GPU-a"},
				Units: 4, Malformed: uneven}}},
		{"gpushare's JSON, none", share(nil, jsonKey, `train=0`),
			[]grant.Allocation{{Source: "annotation:" + jsonKey, Malformed: unreadable}}},
		{"gpushare's JSON, none, for a container that has a part",
			share([]string{"ALIYUN_COM_GPU_MEM_CONTAINER=4"}, jsonKey, `train=0`),
			[]grant.Allocation{{Source: "annotation:" + jsonKey, Asks: true, Malformed: unreadable}}},
		{"gpushare's JSON, none, for one whose part is 0",
			share([]string{"ALIYUN_COM_GPU_MEM_CONTAINER=0"}, jsonKey, `train=0`),
			[]grant.Allocation{{Source: "annotation:" + jsonKey, Malformed: unreadable}}},
		{"gpushare's JSON, none, for one whose part is empty",
			share([]string{"ALIYUN_COM_GPU_MEM_CONTAINER="}, jsonKey, `train=0`),
			[]grant.Allocation{{Source: "annotation:" + jsonKey, Malformed: unreadable}}},
		{"gpushare's JSON, none, outside a pod, where the environment is the image's", func(s *scene) {
			s.spec.Annotations = annotated(jsonKey, `train=0`)
			s.env("ALIYUN_COM_GPU_MEM_CONTAINER=4")
		}, []grant.Allocation{{Source: "annotation:" + jsonKey, Malformed: unreadable}}},
		{"gpushare's JSON that names it, unreadable there", share(nil, jsonKey, `{"train":"all"}`),
			[]grant.Allocation{{Source: "annotation:" + jsonKey, Asks: true, Malformed: unreadable}}},
		{"gpushare's JSON, unreadable for another", share(nil, jsonKey, `{"sidecar":"all"}`), nil},
		{"gpushare's JSON, unreadable for another beside it",
			share(nil, jsonKey, `{"sidecar":"all","train":{"0":4}}`),
			[]grant.Allocation{{Source: "annotation:" + jsonKey, Asks: true, GPUs: []string{"0"}, Units: 4}}},
		{"gpushare's JSON, a card twice", share(nil, jsonKey, `{"train":{"0":4,"0":5}}`),
			[]grant.Allocation{{Source: "annotation:" + jsonKey, Malformed: unreadable}}},
		{"gpushare's JSON with a key twice", share(nil, jsonKey, `{"train":{"0":4},"train":{"0":5}}`),
			[]grant.Allocation{{Source: "annotation:" + jsonKey, Malformed: unreadable}}},
		{"a dialect that is not spoken here", func(s *scene) {
			s.node.Policy.Annotations.Dialects = []grant.Dialect{grant.DialectGPUShare}
			s.spec.Annotations = annotated("gpuledger.dev/gpus", "0")
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.setup(s)
			if r := s.find(); !reflect.DeepEqual(r.Allocations, c.want) || len(r.Hits) > 0 {
				t.Errorf("got\n%+v\nwant\n%+v\nhits %v", r.Allocations, c.want, r.Hits)
			}
		})
	}
}
