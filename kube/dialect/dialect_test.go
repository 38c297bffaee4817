package dialect

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/placement"
)

const all = `
[[resource]]
name = "gpuledger.dev/gpu-memory"
[[resource]]
name = "gpuledger.dev/gpu"
[[resource]]
name = "gpuledger.dev/gpu-compute"
[[resource]]
name = "aliyun.com/gpu-mem"
[[resource]]
name = "aliyun.com/gpu-core.percentage"
[[resource]]
name = "nvidia.com/gpu"
[[resource]]
name = "nvidia.com/gpumem"
[[resource]]
name = "nvidia.com/gpumem-percentage"
[[resource]]
name = "nvidia.com/gpucores"
[[resource]]
name = "gpu-memory"
[[resource]]
name = "gpu-fraction"
[[resource]]
name = "example.com/vram"
like = "nvidia.com/gpumem"
unit = "256MiB"
mode = "mps"
`

const slicing = `
nvidia_device_plugin = '''
version: v1
flags: {migStrategy: none}
sharing:
  timeSlicing:
    renameByDefault: true
    resources:
      - name: nvidia.com/gpu
        replicas: 4
'''
[[resource]]
name = "nvidia.com/gpu"
[[resource]]
name = "nvidia.com/gpumem"
`

func config(t *testing.T, text string) Config {
	t.Helper()
	c, err := Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// pod returns a pod of one container "train" with these limits.
func pod(limits string, notes ...string) *corev1.Pod {
	p := &corev1.Pod{}
	text := "spec: {containers: [{name: train, resources: {limits: {" + limits + "}}}]}"
	if err := yaml.Unmarshal([]byte(text), p); err != nil {
		panic(err)
	}
	p.Namespace, p.Annotations = "team", map[string]string{}
	for _, note := range notes {
		key, value, _ := strings.Cut(note, "=")
		p.Annotations[key] = value
	}
	return p
}

func labelled(p *corev1.Pod, key, value string) *corev1.Pod {
	p.Labels = map[string]string{key: value}
	return p
}

// repeated gives a pod its container so many times.
func repeated(p *corev1.Pod, times int) *corev1.Pod {
	p.Spec.Containers = slices.Repeat(p.Spec.Containers, times)
	return p
}

func owned(p *corev1.Pod) *corev1.Pod {
	is := true
	p.OwnerReferences = []metav1.OwnerReference{{UID: "rs-1", Controller: &is}}
	return p
}

func replaced(s, old, with string) string { return strings.Replace(s, old, with, 1) }

const gib = grant.GiB

func TestWish(t *testing.T) {
	two := pod("aliyun.com/gpu-mem: 4")
	two.Spec.Containers = append(two.Spec.Containers, corev1.Container{Name: "serve",
		Resources: pod("nvidia.com/gpu: 1").Spec.Containers[0].Resources})
	always := corev1.ContainerRestartPolicyAlways
	init := pod("gpuledger.dev/gpu-memory: 2")
	init.Spec.InitContainers = []corev1.Container{
		{Name: "load", Resources: pod("gpuledger.dev/gpu-memory: 3").Spec.Containers[0].Resources},
		{Name: "side", Resources: pod("gpuledger.dev/gpu-memory: 1").Spec.Containers[0].Resources,
			RestartPolicy: &always}}
	second := pod("", "gpu-fraction=0.25", "gpu-fraction-container-name=side")
	second.Spec.Containers = append(second.Spec.Containers, corev1.Container{Name: "side"})
	mps := replaced(slicing, "timeSlicing", "mps")
	ignored := replaced(slicing, "replicas: 4", "replicas: 4\n        rename: slice\n        devices: [0]")

	for name, c := range map[string]struct {
		config string
		pod    *corev1.Pod
		want   []placement.Demand // nil: it asks for nothing
		more   placement.Wish     // without the demands
	}{
		"no GPU": {all, pod("cpu: 1"), nil, placement.Wish{}},
		"no GPU, but a number of GPUs": {all, labelled(pod("cpu: 1"), "aliyun.com/gpu-count", "2"),
			nil, placement.Wish{}},
		"a zero":                               {all, pod("nvidia.com/gpu: 0"), nil, placement.Wish{}},
		"a name that is not configured":        {"", pod("nvidia.com/gpu: 1"), nil, placement.Wish{}},
		"an annotation that is not configured": {"", pod("", "gpu-fraction=0.5"), nil, placement.Wish{}},
		"ours without a configuration": {"", pod("gpuledger.dev/gpu-memory: 4"),
			[]placement.Demand{{GPUs: 1, Memory: 4 * gib}}, placement.Wish{}},
		"ours: whole GPUs": {all, pod("gpuledger.dev/gpu: 2"),
			[]placement.Demand{{GPUs: 2, Mode: grant.Exclusive}}, placement.Wish{}},
		"ours: over two GPUs, with compute": {all,
			pod("gpuledger.dev/gpu-memory: 4, gpuledger.dev/gpu-compute: 30", "gpuledger.dev/gpu-count=2"),
			[]placement.Demand{{GPUs: 2, Memory: 2 * gib, Compute: 30}}, placement.Wish{}},
		"ACK: memory": {all, pod("aliyun.com/gpu-mem: 3"),
			[]placement.Demand{{GPUs: 1, Memory: 3 * gib}}, placement.Wish{}},
		"ACK: 8 GiB over two GPUs, by a label": {all,
			labelled(pod("aliyun.com/gpu-mem: 8"), "aliyun.com/gpu-count", "2"),
			[]placement.Demand{{GPUs: 2, Memory: 4 * gib}}, placement.Wish{}},
		"ACK: 8 GiB over two GPUs, by an annotation": {all,
			pod("aliyun.com/gpu-mem: 8", "aliyun.com/gpu-count=2"),
			[]placement.Demand{{GPUs: 2, Memory: 4 * gib}}, placement.Wish{}},
		"ACK: memory and compute": {all, pod("aliyun.com/gpu-mem: 2, aliyun.com/gpu-core.percentage: 30"),
			[]placement.Demand{{GPUs: 1, Memory: 2 * gib, Compute: 30}}, placement.Wish{}},
		"gpushare in MiB": {"[[resource]]\nname = \"aliyun.com/gpu-mem\"\nunit = \"1MiB\"",
			pod("aliyun.com/gpu-mem: 512"), []placement.Demand{{GPUs: 1, Memory: 512 * grant.MiB}},
			placement.Wish{}},
		"NVIDIA: a whole GPU": {all, pod("nvidia.com/gpu: 1"),
			[]placement.Demand{{GPUs: 1, Mode: grant.Exclusive}}, placement.Wish{}},
		"NVIDIA: a renamed share": {slicing, pod("nvidia.com/gpu.shared: 1"),
			[]placement.Demand{{GPUs: 1, Part: 250, Mode: grant.Timeslice}}, placement.Wish{}},
		"NVIDIA: two shares": {slicing, pod("nvidia.com/gpu.shared: 2"),
			[]placement.Demand{{GPUs: 2, Part: 250, Mode: grant.Timeslice}}, placement.Wish{}},
		"NVIDIA: whole beside renamed shares": {slicing, pod("nvidia.com/gpu: 1"),
			[]placement.Demand{{GPUs: 1, Mode: grant.Exclusive}}, placement.Wish{}},
		"NVIDIA: a share that keeps its name": {replaced(slicing, "renameByDefault: true",
			"renameByDefault: false"), pod("nvidia.com/gpu: 1"),
			[]placement.Demand{{GPUs: 1, Part: 250, Mode: grant.Timeslice}},
			placement.Wish{}},
		"NVIDIA: one replica is a whole GPU": {replaced(slicing, "replicas: 4", "replicas: 1"),
			pod("nvidia.com/gpu: 1"), []placement.Demand{{GPUs: 1, Mode: grant.Exclusive}}, placement.Wish{}},
		"NVIDIA: a third": {replaced(slicing, "replicas: 4", "replicas: 3"), pod("nvidia.com/gpu.shared: 1"),
			[]placement.Demand{{GPUs: 1, Part: 333, Mode: grant.Timeslice}}, placement.Wish{}},
		"NVIDIA: rename is ignored": {ignored, pod("nvidia.com/gpu.shared: 1"),
			[]placement.Demand{{GPUs: 1, Part: 250, Mode: grant.Timeslice}}, placement.Wish{}},
		"NVIDIA: rename without renameByDefault": {replaced(ignored, "renameByDefault: true",
			"renameByDefault: false"), pod("nvidia.com/gpu: 1"),
			[]placement.Demand{{GPUs: 1, Part: 250, Mode: grant.Timeslice}}, placement.Wish{}},
		"NVIDIA: the name that rename has": {ignored, pod("nvidia.com/slice: 1"), nil, placement.Wish{}},
		"NVIDIA: MPS": {mps, pod("nvidia.com/gpu.shared: 1"),
			[]placement.Demand{{GPUs: 1, Part: 250, Compute: 25, Mode: grant.MPS}}, placement.Wish{}},
		"HAMi: memory of each of two GPUs": {all,
			pod("nvidia.com/gpu: 2, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30"),
			[]placement.Demand{{GPUs: 2, Memory: 3000 * grant.MiB, Compute: 30}}, placement.Wish{}},
		"HAMi: without the number of GPUs": {all, pod("nvidia.com/gpumem: 3000"),
			[]placement.Demand{{GPUs: 1, Memory: 3000 * grant.MiB}}, placement.Wish{}},
		"HAMi: percent": {all, pod("nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 50"),
			[]placement.Demand{{GPUs: 1, Part: 500}}, placement.Wish{}},
		"HAMi: all memory and a share of compute": {all, pod("nvidia.com/gpu: 1, nvidia.com/gpucores: 40"),
			[]placement.Demand{{GPUs: 1, Compute: 40}}, placement.Wish{}},
		"HAMi: all cores are a whole GPU": {all, pod("nvidia.com/gpu: 2, nvidia.com/gpucores: 100"),
			[]placement.Demand{{GPUs: 2, Mode: grant.Exclusive}}, placement.Wish{}},
		"HAMi: all cores and some memory are a whole GPU, in each mode": {all, pod(
			"nvidia.com/gpumem: 3000, nvidia.com/gpucores: 100", "nvidia.com/vgpu-mode=mps"),
			[]placement.Demand{{GPUs: 1, Mode: grant.Exclusive}}, placement.Wish{AtLeast: 3000 * grant.MiB}},
		"HAMi: all cores of a large GPU": {all, pod("nvidia.com/gpumem: 3000, nvidia.com/gpucores: 100",
			"gpuledger.dev/gpu-memory-total=40GiB"),
			[]placement.Demand{{GPUs: 1, Mode: grant.Exclusive}}, placement.Wish{AtLeast: 40 * gib}},
		"HAMi: its annotations": {all, pod("nvidia.com/gpu: 1, nvidia.com/gpumem: 1024",
			"nvidia.com/use-gputype=A100, H100", "hami.io/gpu-scheduler-policy=spread",
			"nvidia.com/vgpu-mode=mps"), []placement.Demand{{GPUs: 1, Memory: gib, Mode: grant.MPS}},
			placement.Wish{Policy: placement.Spread, Products: []string{"A100", "H100"}}},
		"HAMi's annotations where its names are not configured": {"",
			pod("gpuledger.dev/gpu: 1", "nvidia.com/nouse-gputype=T4"),
			[]placement.Demand{{GPUs: 1, Mode: grant.Exclusive}}, placement.Wish{}},
		"another name and unit": {all, pod("example.com/vram: 4"),
			[]placement.Demand{{GPUs: 1, Memory: gib, Mode: grant.MPS}}, placement.Wish{}},
		"KAI: memory": {all, pod("", "gpu-memory=2000"),
			[]placement.Demand{{GPUs: 1, Memory: 2000 * grant.MiB}}, placement.Wish{}},
		"KAI: half of each of two GPUs": {all, pod("", "gpu-fraction=0.5", "gpu-fraction-num-devices=2",
			"gpu-sm-percentage=20"), []placement.Demand{{GPUs: 2, Part: 500, Compute: 20}}, placement.Wish{}},
		"KAI: percent": {all, pod("", "gpu-fraction=50%"), []placement.Demand{{GPUs: 1, Part: 500}},
			placement.Wish{}},
		"KAI: another container": {all, second,
			[]placement.Demand{{Container: "side", GPUs: 1, Part: 250}}, placement.Wish{}},
		"containers of two dialects": {all, two, []placement.Demand{{GPUs: 1, Memory: 4 * gib},
			{Container: "serve", GPUs: 1, Mode: grant.Exclusive}}, placement.Wish{}},
		"an init container and a sidecar": {all, init, []placement.Demand{
			{Container: "load", Init: true, GPUs: 1, Memory: 3 * gib},
			{Container: "side", GPUs: 1, Memory: gib},
			{GPUs: 1, Memory: 2 * gib}}, placement.Wish{}},
		"replicas on different GPUs": {all, owned(pod("nvidia.com/gpumem: 1024", Apart+"=true")),
			[]placement.Demand{{GPUs: 1, Memory: gib}}, placement.Wish{App: "rs-1"}},
		"an application on different GPUs": {all, pod("nvidia.com/gpumem: 1024", Apart+"=web"),
			[]placement.Demand{{GPUs: 1, Memory: gib}}, placement.Wish{App: "team/web"}},
		"a choice of GPUs": {all, pod("gpuledger.dev/gpu: 1", Placement+"=binpack", Product+"=H100,A100",
			AtLeast+"=40GiB"), []placement.Demand{{GPUs: 1, Mode: grant.Exclusive}},
			placement.Wish{Policy: placement.Binpack, Products: []string{"H100", "A100"}, AtLeast: 40 * gib}},
	} {
		t.Run(name, func(t *testing.T) {
			want := c.more
			for _, d := range c.want {
				if d.Container == "" {
					d.Container = "train"
				}
				want.Demands = append(want.Demands, d)
			}
			got, asks, err := config(t, c.config).Wish(c.pod)
			if err != nil || asks != (c.want != nil) || !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, %v, %v\nwant %+v", got, asks, err, want)
			}
		})
	}
}

// HAMi gives a GPU of which all cores are asked for to one container alone.
func TestAllCoresOfHAMiHaveNoNeighbour(t *testing.T) {
	const share = "nvidia.com/gpu: 1, nvidia.com/gpumem: 3000"
	wish := func(limits string) *placement.Wish {
		w, _, err := config(t, all).Wish(pod(limits))
		if err != nil {
			t.Fatal(err)
		}
		return &w
	}
	cores, memory := wish(share+", nvidia.com/gpucores: 100"), wish(share)
	for name, order := range map[string][2]*placement.Wish{
		"all cores first": {cores, memory}, "all cores second": {memory, cores}} {
		node := placement.Node{GPUs: []placement.GPU{{Memory: 16 * gib, Free: 16 * gib, Compute: 100,
			Modes: []grant.Mode{grant.Exclusive, grant.Limit}}}}
		first, fits := placement.Place(order[0], &node)
		if !fits {
			t.Fatalf("%s: the first does not fit", name)
		}
		gpu := &node.GPUs[0]
		gpu.Mode, gpu.Compute = first[0].Mode, gpu.Compute-first[0].Compute
		if gpu.Free -= first[0].Memory; gpu.Mode == grant.Exclusive {
			gpu.Free, gpu.Compute = 0, 0
		}
		if got, fits := placement.Place(order[1], &node); fits {
			t.Errorf("%s: the second has %+v beside %+v", name, got, first)
		}
	}
}

func TestRefusals(t *testing.T) {
	one := replaced(slicing, "renameByDefault: true",
		"renameByDefault: true\n    failRequestsGreaterThanOne: true")
	for name, c := range map[string]struct {
		config string
		pod    *corev1.Pod
		want   string // a part of the sentence
	}{
		"7 GiB over two GPUs": {all, labelled(pod("aliyun.com/gpu-mem: 7"), "aliyun.com/gpu-count", "2"),
			`container "train" cannot have what it asks for: aliyun.com/gpu-mem: 7 over ` +
				`aliyun.com/gpu-count: 2 is no whole number`},
		"a label and an annotation that differ": {all,
			labelled(pod("aliyun.com/gpu-mem: 8", "aliyun.com/gpu-count=4"), "aliyun.com/gpu-count", "2"),
			`the label is "2" and the annotation is "4"`},
		"no number of GPUs": {all, labelled(pod("aliyun.com/gpu-mem: 8"), "aliyun.com/gpu-count", "two"),
			`"two" is no number of GPUs`},
		"a number of GPUs as a limit": {all, pod("aliyun.com/gpu-mem: 8, aliyun.com/gpu-count: 2"),
			"is a label of the pod"},
		"compute over several GPUs": {all, labelled(pod("aliyun.com/gpu-mem: 8, "+
			"aliyun.com/gpu-core.percentage: 30"), "aliyun.com/gpu-count", "2"), "over several GPUs"},
		"compute alone": {all, pod("aliyun.com/gpu-core.percentage: 30"), "no memory is named"},
		"compute of 120 percent": {all, pod("aliyun.com/gpu-mem: 2, aliyun.com/gpu-core.percentage: 120"),
			"no percentage of a GPU"},
		"compute of whole GPUs": {all, pod("gpuledger.dev/gpu: 1, gpuledger.dev/gpu-compute: 50"),
			"is whole GPUs"},
		"whole and share": {all, pod("gpuledger.dev/gpu: 1, gpuledger.dev/gpu-memory: 4"),
			"ask for one of them"},
		"two dialects": {all, pod("aliyun.com/gpu-mem: 4, gpuledger.dev/gpu: 1"),
			"a container uses one dialect"},
		"two dialects with HAMi": {all, pod("nvidia.com/gpu: 1, aliyun.com/gpu-mem: 4"),
			"a container uses one dialect"},
		"HAMi's memory of a share": {slicing, pod("nvidia.com/gpu.shared: 1, nvidia.com/gpumem: 100"),
			"a container uses one dialect"},
		"memory in two ways": {all, pod("nvidia.com/gpumem: 4, nvidia.com/gpumem-percentage: 50"),
			"say the same in two ways"},
		"half a GPU as a limit": {all, pod("nvidia.com/gpu: 500m"), "is no whole number"},
		"a negative amount":     {all, pod("nvidia.com/gpu: -1"), "is no whole number"},
		"more memory than there is": {all, pod("aliyun.com/gpu-mem: 5000000001"),
			"more memory than there is"},
		"150 percent of the memory": {all, pod("nvidia.com/gpumem-percentage: 150"), "is no percentage"},
		"more GPUs than there are":  {all, pod("nvidia.com/gpu: 5000"), "more than a node has"},
		"HAMi's priority": {all, pod("nvidia.com/gpumem: 4, nvidia.com/priority: 1"),
			"no priorities"},
		"two shares, one is allowed": {one, pod("nvidia.com/gpu.shared: 2"), "failRequestsGreaterThanOne"},
		"two shares in MPS": {replaced(slicing, "timeSlicing", "mps"), pod("nvidia.com/gpu.shared: 2"),
			"failRequestsGreaterThanOne"},
		"HAMi: not this product": {all, pod("nvidia.com/gpumem: 4", "nvidia.com/nouse-gputype=T4"),
			"excludes none"},
		"HAMi: this GPU": {all, pod("nvidia.com/gpumem: 4", "nvidia.com/use-gpuuuid=GPU-1"),
			"chooses the GPU"},
		"HAMi: NUMA": {all, pod("nvidia.com/gpumem: 4", "nvidia.com/numa-bind=true"),
			"topology"},
		"HAMi: MIG": {all, pod("nvidia.com/gpumem: 4", "nvidia.com/vgpu-mode=mig"),
			"want hami-core or mps"},
		"HAMi: topology": {all, pod("nvidia.com/gpumem: 4",
			"hami.io/gpu-scheduler-policy=topology-aware"), "want binpack or spread"},
		"HAMi: two policies": {all, pod("nvidia.com/gpumem: 4", "hami.io/gpu-scheduler-policy=spread",
			"hami.io/node-scheduler-policy=binpack"), "in the same way"},
		"KAI: a whole as a part":  {all, pod("", "gpu-fraction=1"), "is no part of a GPU"},
		"KAI: more than a whole":  {all, pod("", "gpu-fraction=1.5"), "is no part of a GPU"},
		"KAI: too exact":          {all, pod("", "gpu-fraction=0.3333"), "is no part of a GPU"},
		"KAI: nothing":            {all, pod("", "gpu-fraction=0"), "is no part of a GPU"},
		"KAI: empty":              {all, pod("", "gpu-fraction="), "is no part of a GPU"},
		"KAI: memory with a unit": {all, pod("", "gpu-memory=2Gi"), "is no amount of memory"},
		"KAI: memory and fraction": {all, pod("", "gpu-memory=2", "gpu-fraction=0.5"),
			"say the same in two ways"},
		"KAI: a whole and a part": {all, pod("nvidia.com/gpu: 1", "gpu-fraction=0.5"),
			"a container uses one dialect"},
		"KAI: no such container": {all, pod("", "gpu-fraction=0.5", "gpu-fraction-container-name=x"),
			"the pod has no such container"},
		"KAI: a higher limit": {all, pod("", "gpu-fraction=0.5", "gpu-fraction.limit=0.8"),
			"gpu-fraction.limit"},
		"KAI: cores": {all, pod("", "gpu-fraction=0.5", "gpu-sm-cores=10"), "gpu-sm-cores"},
		"KAI: MPS":   {all, pod("", "gpu-fraction=0.5", "mps=true"), "the node's label"},
		"a placement that is none": {all, pod("gpuledger.dev/gpu: 1", Placement+"=random"),
			"want binpack or spread"},
		"a size without a unit": {all, pod("gpuledger.dev/gpu: 1", AtLeast+"=40"), AtLeast},
		"replicas of no controller": {all, pod("gpuledger.dev/gpu: 1", Apart+"=true"),
			"belongs to no controller"},
		"products without end": {all, pod("gpuledger.dev/gpu: 1", Product+"="+strings.Repeat("x,", 100_000)),
			"the pod names 100000 products of GPUs, more than 32"},
		"HAMi: products without end": {all, pod("nvidia.com/gpumem: 4",
			"nvidia.com/use-gputype="+strings.Repeat("x,", 33)), "33 products of GPUs"},
		"containers without end": {all, repeated(pod("nvidia.com/gpumem: 4"), 65), "more than 64 containers"},
	} {
		t.Run(name, func(t *testing.T) {
			wish, asks, err := config(t, c.config).Wish(c.pod)
			if err == nil || !strings.Contains(err.Error(), c.want) || !asks || len(wish.Demands) > 0 {
				t.Errorf("got %+v, %v, %v; want an error with %q", wish, asks, err, c.want)
			}
		})
	}
}

// The schema of the chart takes and refuses the same (packaging/tools/manifests has a test with the
// same file). The programs exit on a configuration that they refuse.
func TestResourcesOfTheChart(t *testing.T) {
	text, err := os.ReadFile("testdata/resources.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Taken, Refused []map[string]string }
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	decodes := func(r map[string]string) error {
		text, err := toml.Marshal(map[string]any{"resource": []any{r}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = Decode(text)
		return err
	}
	names := map[string]bool{}
	for _, r := range all.Taken {
		names[r["name"]] = true
		if err := decodes(r); err != nil {
			t.Errorf("%v: %v", r, err)
		}
	}
	for _, r := range all.Refused {
		if decodes(r) == nil {
			t.Errorf("%v is taken", r)
		}
	}
	for _, name := range Names() {
		if !names[name] {
			t.Errorf("the file has no resource %s: add it, and to the chart's schema", name)
		}
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"an unknown key":       {"[[resource]]\nname = \"nvidia.com/gpu\"\nunits = 1", `line 3: unknown key "resource.units"`},
		"no TOML":              {"[[", "line 1"},
		"another type":         {"resource = 1", "cannot read the names of resources"},
		"a date":               {"part_of = 2020-01-01", "cannot read the names of resources"},
		"no name":              {"[[resource]]\nunit = \"1GiB\"", "has no name"},
		"an unknown name":      {"[[resource]]\nname = \"example.com/gpu\"", "say with like ="},
		"like an unknown name": {"[[resource]]\nname = \"example.com/gpu\"\nlike = \"x\"", `like "x"`},
		"like an annotation":   {"[[resource]]\nname = \"example.com/gpu\"\nlike = \"gpu-memory\"", "has no other name"},
		"like one, no domain":  {"[[resource]]\nname = \"vram\"\nlike = \"nvidia.com/gpumem\"", "has no domain"},
		"a name twice":         {"[[resource]]\nname = \"nvidia.com/gpu\"\n[[resource]]\nname = \"nvidia.com/gpu\"", "there twice"},
		"a unit of GPUs":       {"[[resource]]\nname = \"nvidia.com/gpu\"\nunit = \"1GiB\"", "counts no memory"},
		"a unit of bytes":      {"[[resource]]\nname = \"aliyun.com/gpu-mem\"\nunit = \"1KiB\"", "whole number of MiB"},
		"no size":              {"[[resource]]\nname = \"aliyun.com/gpu-mem\"\nunit = \"1\"", "cannot read the names of resources"},
		"shares in exclusive":  {"[[resource]]\nname = \"aliyun.com/gpu-mem\"\nmode = \"exclusive\"", "not exclusive"},
		"no mode":              {"[[resource]]\nname = \"aliyun.com/gpu-mem\"\nmode = \"x\"", "line 3"},
		"whole GPUs in a mode": {"[[resource]]\nname = \"nvidia.com/gpu\"\nmode = \"mps\"", "in mode exclusive"},
		"NVIDIA: no YAML":      {"nvidia_device_plugin = \"{\"", "nvidia_device_plugin"},
		"NVIDIA: two ways":     {"nvidia_device_plugin = \"{sharing: {mps: {}, timeSlicing: {}}}\"", "both timeSlicing and mps"},
		"NVIDIA: version 2":    {"nvidia_device_plugin = \"version: v2\"", "v1 is known"},
		"NVIDIA: MIG":          {replaced(slicing, "name: nvidia.com/gpu", "name: nvidia.com/mig-1g.5gb"), "nvidia.com/gpu only"},
		"NVIDIA: no replicas":  {replaced(slicing, "replicas: 4", "replicas: 0"), "1 to 1000"},
		"NVIDIA: a name twice": {replaced(slicing, "- name: nvidia.com/gpu", "- {name: gpu, rename: big, replicas: 2}\n      - name: nvidia.com/gpu"), "there twice"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Decode([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, c.want)
			}
		})
	}
}

// The defaults name no resource of others: a cluster that has NVIDIA's plugin keeps it.
func TestDefaultsAreOurOwnNames(t *testing.T) {
	want := []Offer{{Name: Memory, Unit: gib}, {Name: GPUs, EachGPU: 1}}
	if got := config(t, "").Offers(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestOffers(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []Offer
	}{
		"HAMi: several pods count a GPU each": {
			"[[resource]]\nname = \"nvidia.com/gpu\"\n[[resource]]\nname = \"nvidia.com/gpucores\"\n[[resource]]\nname = \"gpu-memory\"",
			[]Offer{{Name: "nvidia.com/gpu", EachGPU: 1, Cards: true}, {Name: "nvidia.com/gpucores", EachGPU: 100}}},
		"NVIDIA: shares beside whole GPUs": {
			replaced(slicing, "[[resource]]\nname = \"nvidia.com/gpumem\"", ""),
			[]Offer{{Name: "nvidia.com/gpu", EachGPU: 1}, {Name: "nvidia.com/gpu.shared", EachGPU: 4}}},
		"NVIDIA: shares with the name of GPUs": {"nvidia_device_plugin = \"sharing: {mps: {resources: " +
			"[{name: gpu, replicas: 2}]}}\"\n[[resource]]\nname = \"nvidia.com/gpu\"",
			[]Offer{{Name: "nvidia.com/gpu", EachGPU: 2}}},
	} {
		if got := config(t, c.text).Offers(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

// The kubelet has a share for each pod that the scheduler can place.
func TestSharesThatFitAreOffered(t *testing.T) {
	placed := func(mib grant.Bytes, part int) (n int) {
		gpus := []placement.GPU{{Memory: mib * grant.MiB, Free: mib * grant.MiB, Compute: 100,
			Modes: []grant.Mode{grant.Timeslice}}}
		w := placement.Wish{}
		for {
			w.Demands = append(w.Demands, placement.Demand{GPUs: 1, Part: part, Mode: grant.Timeslice})
			if _, fits := placement.Place(&w, &placement.Node{GPUs: gpus}); !fits {
				return n
			}
			n++
		}
	}
	if n := placed(16<<10, shared{replicas: 48}.part()); n != 50 {
		t.Errorf("%d shares of 48 replicas are placed, and it was 50", n)
	}
	for replicas := 1; replicas <= 1000; replicas++ {
		s := shared{name: "nvidia.com/gpu", replicas: replicas, mode: grant.Timeslice}
		offered := Config{sharing: []shared{s}}.Offers()[0].EachGPU
		if replicas <= 10 && offered != replicas {
			t.Errorf("%d of %d replicas are offered", offered, replicas)
		}
		for mib := 1 << 10; mib < 200<<10; mib += 1 + mib/200 {
			if fit := mib / (mib * s.part() / 1000); fit > offered {
				t.Fatalf("%d replicas of %d MiB: %d fit, and %d are offered", replicas, mib, fit, offered)
			}
		}
	}
}

func FuzzWish(f *testing.F) {
	f.Add("nvidia.com/gpu: 1", "gpu-fraction", "0.5", "aliyun.com/gpu-count", "2")
	f.Add("aliyun.com/gpu-mem: 8", "aliyun.com/gpu-count", "3", "gpu-memory", "1")
	f.Add("nvidia.com/gpu.shared: 1, nvidia.com/gpucores: 5", Placement, "spread", Apart, "x")
	f.Fuzz(func(t *testing.T, limits, key, value, key2, value2 string) {
		p := &corev1.Pod{}
		text := "spec: {containers: [{name: train, resources: {limits: {" + limits + "}}}, {name: b}]}"
		if yaml.Unmarshal([]byte(text), p) != nil {
			return
		}
		p.Annotations, p.Labels = map[string]string{key: value}, map[string]string{key2: value2}
		for _, configured := range []string{all, slicing, ""} {
			c, err := Decode([]byte(configured))
			if err != nil {
				t.Fatal(err)
			}
			wish, asks, err := c.Wish(p)
			if err != nil && (len(wish.Demands) > 0 || strings.Contains(err.Error(), "\n")) {
				t.Fatalf("%+v, %v", wish, err)
			}
			if err == nil && asks != (len(wish.Demands) > 0) {
				t.Fatalf("%+v, %v", wish, asks)
			}
			for _, d := range wish.Demands {
				if d.GPUs < 1 || d.GPUs > maxGPUs || d.Part < 0 || d.Part > 1000 || d.Compute < 0 ||
					d.Compute > 100 || d.Part > 0 && d.Memory > 0 ||
					d.Mode == grant.Exclusive && (d.Memory > 0 || d.Part > 0 || d.Compute > 0) {
					t.Fatalf("%+v", d)
				}
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(all))
	f.Add([]byte(slicing))
	f.Add([]byte("part_of = \"80GiB\""))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Decode(text)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q", err)
			}
			return
		}
		for _, o := range c.Offers() {
			if o.Name == "" || o.Unit == 0 && o.EachGPU < 1 {
				t.Fatalf("%+v", o)
			}
		}
	})
}
