package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// api answers as a cluster with two nodes: one publishes slices, the other has a device plugin.
func api(t *testing.T, answers map[string]string) kubernetes.Interface {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, found := answers[r.URL.Path]
		if answer == forbidden {
			w.WriteHeader(http.StatusForbidden)
			answer = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden",` +
				`"code":403,"message":"you may not"}`
		}
		if !found {
			w.WriteHeader(http.StatusNotFound)
			answer = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,` +
				`"message":"not found"}`
		}
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

const forbidden = "forbidden"

// device returns a device of gpu-a or gpu-b in a mode.
func device(gpu, index, mode, memory string) string {
	return `{"name":"` + gpu + `-` + mode + `","attributes":{"uuid":{"string":"GPU-` + gpu +
		`"},"index":{"int":` + index + `},"mode":{"string":"` + mode +
		`"},"health":{"string":"ok"}},"capacity":{"memory":{"value":"` + memory + `"}}}`
}

func result(device, more string) string {
	return `{"request":"gpu","driver":"gpuledger.dev","pool":"gpu-1","device":"` + device + `"` + more + `}`
}

var whole2 = map[string]string{
	"/api/v1/nodes": `{"items":[{"metadata":{"name":"gpu-1"},"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}},
		{"metadata":{"name":"cpu"}},
		{"metadata":{"name":"old"},"status":{"addresses":[{"type":"Hostname","address":"old"},{"type":"InternalIP","address":"10.0.0.2"}],"capacity":{"gpuledger.dev/gpu-memory":"32"}}}]}`,
	"/apis/resource.k8s.io/v1/resourceslices": `{"items":[
		{"spec":{"driver":"gpuledger.dev","pool":{"name":"gpu-1","generation":1},"devices":[` + device("gone", "7", "limit", "99Gi") + `]}},
		{"spec":{"driver":"gpuledger.dev","pool":{"name":"gpu-1","generation":2},"devices":[` + device("b", "1", "exclusive", "16Gi") + `,` + device("a", "0", "exclusive", "16Gi") + `,` + device("a", "0", "limit", "16Gi") + `]}}]}`,
	"/apis/resource.k8s.io/v1/resourceclaims": `{"items":[
		{"metadata":{"namespace":"team","name":"share"},"status":{"reservedFor":[{"resource":"pods","name":"train","uid":"1"}],"allocation":{"devices":{"results":[` +
		result("a-limit", `,"consumedCapacity":{"memory":"6656Mi","compute":"30"}`) + `]}}}},
		{"metadata":{"namespace":"team","name":"whole"},"status":{"allocation":{"devices":{"results":[` + result("b-exclusive", "") + `]}}}},
		{"metadata":{"namespace":"team","name":"waits"}}]}`,
	"/api/v1/pods": `{"items":[{"metadata":{"namespace":"team","name":"p"},"spec":{"nodeName":"old","initContainers":[{"name":"i","resources":{"limits":{"gpuledger.dev/gpu-memory":"5"}}}],
		"containers":[{"name":"a","resources":{"limits":{"gpuledger.dev/gpu-memory":"4"}}},{"name":"b","resources":{"limits":{"gpuledger.dev/gpu-memory":"4"}}}]}}]}`,
	"/api/v1/namespaces/team/pods/train": `{"metadata":{"namespace":"team","name":"train","uid":"1"},"spec":{"nodeName":"gpu-1","resourceClaims":[{"name":"gpu","resourceClaimTemplateName":"t"}],"containers":[{"name":"main"}]},
		"status":{"phase":"Running","resourceClaimStatuses":[{"name":"gpu","resourceClaimName":"share"}]}}`,
	"/api/v1/namespaces/team/pods/late": `{"metadata":{"namespace":"team","name":"late","uid":"2"},"spec":{"resourceClaims":[{"name":"gpu","resourceClaimName":"waits"},{"name":"other","resourceClaimTemplateName":"t"}],"containers":[{"name":"main","resources":{"limits":{"gpuledger.dev/gpu":"1"}}}]},
		"status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","message":"0/3 nodes are available: 1 cannot allocate all claims."}]}}`,
	"/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/share": `{"metadata":{"namespace":"team",` +
		`"name":"share"},"status":{"allocation":{"devices":{"results":[` +
		result("a-limit", `,"consumedCapacity":{"memory":"6656Mi","compute":"30"}`) +
		`,{"driver":"vendor.example","pool":"gpu-1","device":"a-limit"}]}}}}`,
	"/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/waits": `{"metadata":{"namespace":"team",` +
		`"name":"waits"},"spec":{"devices":{"requests":[{"name":"gpu",` +
		`"exactly":{"deviceClassName":"limit.gpuledger.dev","capacity":{"requests":{"memory":"64Gi"}}}}]}}}`,
	"/api/v1/namespaces/team/events": `{"items":[{"type":"Warning","message":"Error: gpuledger: refused (visible-devices-all): container \"main\" asks for all GPUs"},
		{"type":"Warning","message":"Back-off restarting failed container"},{"type":"Normal","message":"gpuledger is nice"}]}`,
}

func TestInspect(t *testing.T) {
	nodes, err := Read(context.Background(), api(t, whole2))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Print(&out, nodes, true); err != nil {
		t.Fatal(err)
	}
	const want = `NAME   IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)
gpu-1  10.0.0.1   6.5/16 limit           16/16 exclusive        22.5/32
old    10.0.0.2   -                      -                      -
------------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
22.5/32 (70%)
old: 8/32 gpuledger.dev/gpu-memory by the device plugin

NODE gpu-1
GPU  NAMESPACE  CLAIM  PODS   MODE       MEMORY(GiB)  COMPUTE
0    team       share  train  limit      6.5          30%
1    team       whole         exclusive  16           -

NODE old
GPU  NAMESPACE  CLAIM  PODS  MODE  MEMORY(GiB)  COMPUTE
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	if text, err := json.Marshal(nodes); err != nil || !strings.Contains(string(text), `"claim":"share"`) {
		t.Errorf("got %s, %v", text, err)
	}
}

// A GPU that was removed, or that has no mode, leaves its column empty. MIG devices have the index
// of their GPU.
func TestInspectNamesGPUsByTheirIndex(t *testing.T) {
	mig := func(gpu string) string {
		return strings.Replace(device(gpu, "0", "mig", "4Gi"), `"mode":`,
			`"profile":{"string":"1g.5gb"},"mode":`,
			1)
	}
	answers := maps.Clone(whole2)
	answers["/api/v1/nodes"] = `{"items":[{"metadata":{"name":"gpu-1"}},{"metadata":{"name":"gpu-2"}}]}`
	answers["/apis/resource.k8s.io/v1/resourceslices"] = `{"items":[
		{"spec":{"driver":"gpuledger.dev","pool":{"name":"gpu-1","generation":1},"devices":[` + strings.Join([]string{mig("m1"), mig("m2"), mig("m3"), device("b", "1", "limit", "16Gi")}, ",") + `]}},
		{"spec":{"driver":"gpuledger.dev","pool":{"name":"gpu-2","generation":1},"devices":[` + strings.Join([]string{device("d", "3", "limit", "16Gi"), device("c", "1", "limit", "16Gi")}, ",") + `]}}]}`
	answers["/apis/resource.k8s.io/v1/resourceclaims"] = `{"items":[
		{"metadata":{"namespace":"team","name":"part"},"status":{"allocation":{"devices":{"results":[` + result("m2-mig", "") + "," + result("m1-mig", "") + `]}}}},
		{"metadata":{"namespace":"team","name":"far"},"status":{"allocation":{"devices":{"results":[` +
		strings.Replace(result("d-limit", `,"consumedCapacity":{"memory":"4Gi"}`), "gpu-1", "gpu-2", 1) +
		`]}}}}]}`
	nodes, err := Read(context.Background(), api(t, answers))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Print(&out, nodes, true); err != nil {
		t.Fatal(err)
	}
	const want = `NAME   IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU3(Allocated/Total)  GPU Memory(GiB)
gpu-1             8/12 mig               0/16                   -                      8/28
gpu-2             -                      0/16                   4/16 limit             4/32
------------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
12/60 (20%)

NODE gpu-1
GPU       NAMESPACE  CLAIM  PODS  MODE  MEMORY(GiB)  COMPUTE
0/1g.5gb  team       part         mig   4            -
0/1g.5gb  team       part         mig   4            -

NODE gpu-2
GPU  NAMESPACE  CLAIM  PODS  MODE   MEMORY(GiB)  COMPUTE
3    team       far          limit  4            -
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// Each request of a claim is a grant, and two of them may have shares of one GPU.
func TestRequestsAreNamed(t *testing.T) {
	answers := maps.Clone(whole2)
	of := func(request, result string) string {
		return strings.Replace(result, `"request":"gpu"`, `"request":"`+request+`"`, 1)
	}
	claim := `{"metadata":{"namespace":"team","name":"p-extended-resources-x"},` +
		`"status":{"allocation":{"devices":{"results":[` +
		of("train", result("a-limit", `,"consumedCapacity":{"memory":"6Gi"}`)) + "," +
		of("serve/small", result("a-limit", `,"consumedCapacity":{"memory":"2Gi"}`)) + "," +
		of("serve/small", result("b-limit", `,"consumedCapacity":{"memory":"2Gi"}`)) + `]}}}}`
	answers["/apis/resource.k8s.io/v1/resourceclaims"] = `{"items":[` + claim + `]}`
	answers["/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/p-extended-resources-x"] = claim
	answers["/apis/resource.k8s.io/v1/resourceslices"] = `{"items":[{"spec":{"driver":"gpuledger.dev",` +
		`"pool":{"name":"gpu-1","generation":1},"devices":[` +
		device("a", "0", "limit", "16Gi") + `,` + device("b", "1", "limit", "16Gi") + `]}}]}`
	answers["/api/v1/namespaces/team/pods/p"] = `{"metadata":{"namespace":"team","name":"p","uid":"1"},
		"spec":{"nodeName":"gpu-1","containers":[{"name":"main","resources":{"limits":{"gpuledger.dev/gpu":"1"}}},{"name":"units","resources":{"limits":{"gpuledger.dev/gpu-memory":"1"}}}]},
		"status":{"phase":"Running","extendedResourceClaimStatus":{"resourceClaimName":"p-extended-resources-x","requestMappings":[{"containerName":"main","resourceName":"gpuledger.dev/gpu","requestName":"train"}]}}}`
	nodes, err := Read(context.Background(), api(t, answers))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Print(&out, nodes[:1], true); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"0    team       p-extended-resources-x/train        limit  6            -",
		"0    team       p-extended-resources-x/serve        limit  2            -",
		"1    team       p-extended-resources-x/serve        limit  2            -"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("no line %q in\n%s", line, out.String())
		}
	}
	answers["/api/v1/namespaces/team/events"] = `{"items":[]}`
	e, err := Explain(context.Background(), api(t, answers), "team", "p")
	if err != nil {
		t.Fatal(err)
	}
	out.Reset()
	e.Write(&out)
	const want = `pod team/p is Running on gpu-1
claim p-extended-resources-x/train has 6 GiB of GPU 0 in mode limit
claim p-extended-resources-x/serve has 2 GiB of GPU 0 in mode limit
claim p-extended-resources-x/serve has 2 GiB of GPU 1 in mode limit
container units: 1 gpuledger.dev/gpu-memory by the device plugin
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestAClusterWithoutDynamicResourceAllocation(t *testing.T) {
	nodes, err := Read(context.Background(),
		api(t, map[string]string{"/api/v1/nodes": whole2["/api/v1/nodes"],
			"/api/v1/pods": whole2["/api/v1/pods"]}))
	if err != nil || len(nodes) != 1 || nodes[0].Name != "old" {
		t.Errorf("got %v, %v; want the node with the device plugin", nodes, err)
	}
	var out bytes.Buffer
	if err := Print(&out, nil, false); err != nil || !strings.HasPrefix(out.String(), "no node has GPUs") {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

func TestExplain(t *testing.T) {
	for pod, want := range map[string]string{
		"train": `pod team/train is Running on gpu-1
claim share has 6.5 GiB of GPU 0 in mode limit, with 30% of its compute
event: Error: gpuledger: refused (visible-devices-all): container "main" asks for all GPUs
`,
		"late": `pod team/late is Pending
claim waits is not allocated: it wants 64 GiB of a GPU in mode limit, and no GPU has more than 9.5 GiB free in that mode
claim other: the claim is not made from its template yet
container main: 1 gpuledger.dev/gpu by the device plugin
it waits: 0/3 nodes are available: 1 cannot allocate all claims.
event: Error: gpuledger: refused (visible-devices-all): container "main" asks for all GPUs
`} {
		e, err := Explain(context.Background(), api(t, whole2), "team", pod)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		e.Write(&out)
		if out.String() != want {
			t.Errorf("got\n%s\nwant\n%s", out.String(), want)
		}
	}
	if _, err := Explain(context.Background(), api(t, whole2), "team", "nobody"); err == nil ||
		!strings.Contains(err.Error(), "cannot explain") {
		t.Errorf("got %v", err)
	}
}

// A tenant may read its own namespace, perhaps only a part of it, and perhaps the published slices.
// Explain still describes its pod.
func TestExplainToATenant(t *testing.T) {
	const slices, claims, share, events = "/apis/resource.k8s.io/v1/resourceslices",
		"/apis/resource.k8s.io/v1/resourceclaims",
		"/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/share", "/api/v1/namespaces/team/events"
	others := []string{"/api/v1/nodes", "/api/v1/pods", claims}
	for name, c := range map[string]struct {
		pod    string
		closed []string
		want   string
	}{
		"of the namespace alone": {"train", append(others, slices), `pod team/train is Running on gpu-1
claim share has 6.5 GiB of a-limit on gpu-1
event: Error: gpuledger: refused (visible-devices-all): container "main" asks for all GPUs
not looked at: what the nodes offer: you may not
`},
		"of what nodes offer, too": {"train", others, `pod team/train is Running on gpu-1
claim share has 6.5 GiB of GPU 0 in mode limit, with 30% of its compute
event: Error: gpuledger: refused (visible-devices-all): container "main" asks for all GPUs
`},
		"the holders are other tenants' data": {"late", others, `pod team/late is Pending
claim waits is not allocated
claim other: the claim is not made from its template yet
container main: 1 gpuledger.dev/gpu by the device plugin
it waits: 0/3 nodes are available: 1 cannot allocate all claims.
event: Error: gpuledger: refused (visible-devices-all): container "main" asks for all GPUs
not looked at: the claims of all namespaces, which show what is free: you may not
`},
		"of pods alone": {"train", append(others, slices, share, events), `pod team/train is Running on gpu-1
claim share: you may not read it
not looked at: claim share: you may not
not looked at: the pod's events, where refusals stand: you may not
`},
	} {
		t.Run(name, func(t *testing.T) {
			answers := maps.Clone(whole2)
			for _, path := range c.closed {
				answers[path] = forbidden
			}
			e, err := Explain(context.Background(), api(t, answers), "team", c.pod)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			e.Write(&out)
			if out.String() != c.want {
				t.Errorf("got\n%s\nwant\n%s", out.String(), c.want)
			}
		})
	}
}

// The scheduler says that it cannot allocate a claim, but not why. The published slices and the
// claims show the reason.
func TestExplainADeviceThatNoNodeHas(t *testing.T) {
	// GPU 0 of 16 GiB has 6.5 GiB of shares, GPU 1 is granted whole.
	nodes, err := Read(context.Background(), api(t, whole2))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		`{"deviceClassName":"limit.gpuledger.dev","capacity":{"requests":{"memory":"9728Mi"}}}`:        "",
		`{"deviceClassName":"limit.gpuledger.dev","capacity":{"requests":{"memory":"10Gi"}}}`:          "it wants 10 GiB of a GPU in mode limit, and no GPU has more than 9.5 GiB free in that mode",
		`{"deviceClassName":"limit.gpuledger.dev","count":2,"capacity":{"requests":{"memory":"1Gi"}}}`: "it wants 1 GiB of each of 2 GPUs in mode limit, and no node has more than 1 of them free",
		`{"deviceClassName":"limit.gpuledger.dev"}`:                                                    "it wants all the memory of a GPU in mode limit, and no GPU has more than 9.5 GiB free in that mode",
		`{"deviceClassName":"shared.gpuledger.dev","capacity":{"requests":{"memory":"64Gi"}}}`:         "it wants 64 GiB of a GPU in shares, and no GPU has more than 9.5 GiB free in that mode",
		`{"deviceClassName":"exclusive.gpuledger.dev","count":3}`:                                      "it wants all the memory of each of 3 GPUs in mode exclusive, and none has anything free in that mode",
		`{"deviceClassName":"mps.gpuledger.dev","capacity":{"requests":{"memory":"1Gi"}}}`:             "it wants 1 GiB of a GPU in mode mps, and no node offers that mode; an administrator lists the modes of GPUs in the pools of a node's configuration",
		`{"deviceClassName":"others.example.com"}`:                                                     "",
		`{"deviceClassName":"limit.gpuledger.dev","allocationMode":"All"}`:                             "",
	} {
		r := resourceapi.DeviceRequest{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{}}
		if err := json.Unmarshal([]byte(text), r.Exactly); err != nil {
			t.Fatal(err)
		}
		got := ""
		if w, ours := wantOf(r); ours {
			got = w.missing(nodes)
		}
		if got != want {
			t.Errorf("%s:\ngot  %q\nwant %q", text, got, want)
		}
	}
	n := Node{Name: "n"}
	var closed resourceapi.Device
	if err := json.Unmarshal([]byte(device("a", "0", "limit", "16Gi")), &closed); err != nil {
		t.Fatal(err)
	}
	closed.Taints = []resourceapi.DeviceTaint{{Key: "gpuledger.dev/closed",
		Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	n.addDevice(closed)
	if got := (wantedShare{"limit", 1 << 30, 1}).missing([]Node{n}); !strings.Contains(got,
		"no GPU takes new claims") {
		t.Errorf("a GPU that takes no grants: %q", got)
	}
}

// One device can be had whole and in shares. The claim says how it has it.
func TestADeviceForWholeAndShares(t *testing.T) {
	joint := func(gpu, index string) string {
		return strings.Replace(device(gpu, index, "limit", "16Gi"),
			`"health"`, `"whole":{"bool":true},"health"`, 1)
	}
	answers := maps.Clone(whole2)
	answers["/apis/resource.k8s.io/v1/resourceslices"] = `{"items":[{"spec":{"driver":"gpuledger.dev",` +
		`"pool":{"name":"gpu-1","generation":1},"devices":[` +
		joint("a", "0") + `,` + joint("b", "1") + `]}}]}`
	claim := `{"metadata":{"namespace":"team","name":"share"},"status":{"allocation":{"devices":{"config":[` +
		`{"source":"FromClass","requests":["other"],` +
		`"opaque":{"driver":"gpuledger.dev","parameters":{"mode":"mps"}}},` +
		`{"source":"FromClass","requests":["gpu"],` +
		`"opaque":{"driver":"gpuledger.dev","parameters":{"mode":"exclusive"}}}],` +
		`"results":[` + result("b-limit", `,"consumedCapacity":{"memory":"16Gi","compute":"0"}`) + `]}}}}`
	answers["/apis/resource.k8s.io/v1/resourceclaims"] = `{"items":[` + claim + `]}`
	answers["/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/share"] = claim
	nodes, err := Read(context.Background(), api(t, answers))
	if err != nil {
		t.Fatal(err)
	}
	if g := nodes[0].GPUs[1]; g.Mode != "exclusive" || g.Allocated != 16<<30 ||
		g.Shares[0].Mode != "exclusive" {
		t.Errorf("got %+v, want it whole", g)
	}
	for w, want := range map[wantedShare]string{
		{"exclusive", 0, 1}: "", {"limit", 1 << 30, 1}: "",
		{"exclusive", 0, 2}: "it wants all the memory of each of 2 GPUs in mode exclusive, and no node has " +
			"more than 1 of them free",
		{"limit", 1 << 30, 2}: "it wants 1 GiB of each of 2 GPUs in mode limit, and no node has " +
			"more than 1 of them free",
	} {
		if got := w.missing(nodes); got != want {
			t.Errorf("%v: got %q, want %q", w, got, want)
		}
	}
	answers["/apis/resource.k8s.io/v1/resourceslices"] = forbidden
	e, err := Explain(context.Background(), api(t, answers), "team", "train")
	if want := "16 GiB of b-limit on gpu-1, the whole GPU"; err != nil || len(e.Claims[0].Devices) != 1 ||
		e.Claims[0].Devices[0] != want {
		t.Errorf("got %+v (%v), want %q", e.Claims, err, want)
	}
}

// Others can write events or publish slices, and an administrator's terminal shows their text.
func TestForeignTextIsEscaped(t *testing.T) {
	const escape = "\x1b]0;owned\a\x1b[2J\u202e"
	var out bytes.Buffer
	Explanation{Pod: "team/p", Phase: "Pending", Waits: "no" + escape,
		Reasons: []string{"gpuledger: no" + escape + "\nhint: ask"}}.Write(&out)
	d := resourceapi.Device{Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"uuid":   {StringValue: new("GPU-a")},
		"health": {StringValue: new(escape)}}}
	n := Node{Name: "n"}
	n.addDevice(d)
	if err := Print(&out, []Node{n}, true); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.ContainsAny(text, "\x1b\a\u202e") ||
		!strings.Contains(text, "event: gpuledger: no") || !strings.Contains(text, "\n  hint: ask\n") {
		t.Errorf("got %q", text)
	}
}

func TestGrantsOfAPod(t *testing.T) {
	c := func(n string, always bool) corev1.Container {
		c := corev1.Container{Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"gpuledger.dev/gpu": resource.MustParse(n)}}}
		if always {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		return c
	}
	for name, pod := range map[string]struct {
		init, main []corev1.Container
		want       int64
	}{
		"containers run together": {nil, []corev1.Container{c("1", false), c("2", false)}, 3},
		"an init container runs before them": {[]corev1.Container{c("5", false)},
			[]corev1.Container{c("3", false)}, 5},
		"a sidecar runs beside them": {[]corev1.Container{c("2", true)},
			[]corev1.Container{c("3", false)}, 5},
		"an init container runs beside sidecars": {[]corev1.Container{c("2", true), c("4", false)},
			[]corev1.Container{c("1", false)}, 6},
	} {
		if got := limits(corev1.Pod{Spec: corev1.PodSpec{InitContainers: pod.init, Containers: pod.main}},
			"gpuledger.dev/gpu"); got != pod.want {
			t.Errorf("%s: got %d, want %d", name, got, pod.want)
		}
	}
}
