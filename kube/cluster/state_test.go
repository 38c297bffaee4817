package cluster

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// quoted returns a text as a string of JSON.
func quoted(text string) string { return `"` + strings.ReplaceAll(text, `"`, `\"`) + `"` }

// published is a cluster of one node with the device plugin, which publishes its GPUs: pod a has
// its share already, pod b was placed just now, and 2 GiB are granted to something that is no pod.
func published(state string) map[string]string {
	answers := maps.Clone(whole2)
	delete(answers, "/apis/resource.k8s.io/v1/resourceslices")
	delete(answers, "/apis/resource.k8s.io/v1/resourceclaims")
	answers["/api/v1/nodes"] = `{"items":[{"metadata":{"name":"old","annotations":{"gpuledger.dev/ledger":` +
		quoted(state) + `}},"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.2"}],` +
		`"capacity":{"gpuledger.dev/gpu-memory":"32"}}}]}`
	pod := func(name, uid, notes string) string {
		return `{"metadata":{"namespace":"team","name":"` + name + `","uid":"` + uid + `",` +
			`"annotations":{` + notes + `}},"spec":{"nodeName":"old","containers":[{"name":"main"}]}}`
	}
	answers["/api/v1/pods"] = `{"items":[` +
		pod("b", "2", `"gpuledger.dev/gpus.main":"GPU-1","gpuledger.dev/mode.main":"exclusive"`) + "," +
		pod("a", "1", `"gpuledger.dev/gpus.main":"GPU-0,GPU-2","gpuledger.dev/memory.main":"8GiB",`+
			`"gpuledger.dev/mode.main":"limit","gpuledger.dev/compute.main":"30"`) + "," +
		pod("c", "3", `"example.com/a":"b"`) + `]}`
	return answers
}

const three = `{"version":1,"gpus":[
	{"uuid":"GPU-0","index":0,"memory":17179869184,"free":1,"compute":70,"modes":["limit"],"mode":"limit","granted":6442450944,"used":3221225472},
	{"uuid":"GPU-1","index":1,"memory":17179869184,"free":1,"compute":100,"modes":["limit"]},
	{"uuid":"GPU-2","index":2,"memory":17179869184,"free":1,"compute":70,"modes":["limit"],"mode":"limit","granted":4294967296,"closed":"is unhealthy"}],
	"adopted":["1/main"]}`

func TestANodeThatPublishesItsGPUs(t *testing.T) {
	nodes, err := Read(context.Background(), api(t,
		published(strings.ReplaceAll(strings.ReplaceAll(three, "\n", ""), "\t", ""))))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Print(&out, nodes, true); err != nil {
		t.Fatal(err)
	}
	if err := PrintPods(&out, nodes); err != nil {
		t.Fatal(err)
	}
	const want = `NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU2(Allocated/Total)  GPU Memory(GiB)
old   10.0.0.2   6/16 limit             16/16 exclusive        4/16 closed            26/48
------------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
26/48 (54%)

NODE old
GPU  NAMESPACE  CLAIM  PODS  MODE       MEMORY(GiB)  COMPUTE
0    team       -      a     limit      4            30%
1    team       -      b     exclusive  16           -
2    team       -      a     limit      4            30%
GPU 0: 3 GiB used by processes
NAME:       old
IPADDRESS:  10.0.0.2

NAME  NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  GPU2(Allocated)
a     team       4                0                4
b     team       0                16               0
Allocated :  26 (54%)
Used :       3 (6%)
Total :      48
------------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:  26/48 (54%)
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// A node whose annotation cannot be read has what its device plugin counts, and no sum that is 0.
func TestANodeThatPublishesNothingUseful(t *testing.T) {
	for _, state := range []string{"", "{", `{"version":2,"gpus":[{"uuid":"a"}]}`,
		`{"version":1,"gpus":[]}`} {
		nodes, err := Read(context.Background(), api(t, published(state)))
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := Print(&out, nodes, false); err != nil {
			t.Fatal(err)
		}
		if text := out.String(); strings.Contains(text, "0/0") ||
			!strings.Contains(text, "unknown: no node publishes its GPUs\nold: 0/32 "+
				"gpuledger.dev/gpu-memory by the device plugin") {
			t.Errorf("%s: got\n%s", state, text)
		}
	}
}

// After scheduler.enabled=false the annotation stays, and nothing keeps it up to date.
func TestWhatADevicePluginThatIsGoneHasPublishedIsOld(t *testing.T) {
	compact := strings.NewReplacer("\n", "", "\t", "")
	for writer, old := range map[string]bool{"": false, "team/a": false, "team/gone": true, "other/a": true} {
		state := compact.Replace(strings.Replace(three, `"version":1`, `"version":1,"pod":"`+writer+`"`, 1))
		nodes, err := Read(context.Background(), api(t, published(state)))
		if err != nil {
			t.Fatal(err)
		}
		if n := nodes[0]; (len(n.GPUs) == 0) != old || (len(n.Counted) == 1) != old {
			t.Errorf("%q has published it: got %d GPUs and the units %v", writer, len(n.GPUs), n.Counted)
		}
	}
}

// Pods ask the scheduler by names of other systems. What they have is in their annotations.
func TestExplainAPodOfTheScheduler(t *testing.T) {
	const waits = `"spec":{"schedulerName":"gpuledger-scheduler","initContainers":[{"name":"load"}],` +
		`"containers":[{"name":"main","resources":{"limits":{"nvidia.com/gpu":"2",` +
		`"nvidia.com/gpumem":"3072"}}},{"name":"side"}]},"status":{"phase":"Pending"}}`
	for notes, want := range map[string]string{
		`"gpuledger.dev/gpus.main":"GPU-0,GPU-2","gpuledger.dev/memory.main":"6GiB",` +
			`"gpuledger.dev/mode.main":"limit","gpuledger.dev/compute.main":"30",` +
			`"gpuledger.dev/gpus.load":"GPU-1","gpuledger.dev/mode.load":"exclusive"`: `pod team/p is Pending
container load is allocated GPU-1 in mode exclusive
container main is allocated 3 GiB of GPU-0 in mode limit, with 30% of its compute
container main is allocated 3 GiB of GPU-2 in mode limit, with 30% of its compute
`,
		`"example.com/a":"b"`: `pod team/p is Pending
it has no claim and no allocation of gpuledger
`} {
		e, err := Explain(context.Background(), api(t, map[string]string{
			"/api/v1/namespaces/team/events": `{"items":[]}`,
			"/api/v1/namespaces/team/pods/p": `{"metadata":{"namespace":"team","name":"p","uid":"1",` +
				`"annotations":{` + notes + `}},` + waits}), "team", "p")
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		e.Write(&out)
		if out.String() != want {
			t.Errorf("got\n%s\nwant\n%s", out.String(), want)
		}
	}
}

// An init container has ended before the others run. So a pod counts with the most that it has at a
// time, and not with the sum.
func TestAnInitContainerIsNotAllocatedBesideTheOthers(t *testing.T) {
	notes := map[string]string{}
	for name, memory := range map[string]string{"load": "8GiB", "proxy": "1GiB", "main": "6GiB"} {
		notes["gpuledger.dev/gpus."+name], notes["gpuledger.dev/mode."+name] = "GPU-0", "limit"
		notes["gpuledger.dev/memory."+name] = memory
	}
	always := corev1.ContainerRestartPolicyAlways
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "1", Annotations: notes},
		Spec: corev1.PodSpec{NodeName: "old",
			InitContainers: []corev1.Container{{Name: "proxy", RestartPolicy: &always}, {Name: "load"}},
			Containers:     []corev1.Container{{Name: "main"}}}}
	for _, c := range []struct {
		name, adopted string
		granted, want grant.Bytes
	}{
		{"it is placed", ``, 0, 9},
		{"the sidecar runs", `"1/proxy"`, 1, 9},
		{"the init container runs", `"1/proxy","1/load"`, 9, 9},
		{"the init container has ended", `"1/proxy","1/main"`, 7, 9},
		{"beside another pod", `"1/proxy","1/main"`, 9, 11},
	} {
		n := Node{Name: "old"}
		n.addState(fmt.Sprintf(`{"version":1,"gpus":[{"uuid":"GPU-0","memory":%d,`+
			`"mode":"limit","granted":%d}],"adopted":[%s]}`, 12*grant.GiB, c.granted*grant.GiB, c.adopted),
			[]corev1.Pod{pod})
		if got := n.GPUs[0].Allocated; got != int64(c.want*grant.GiB) {
			t.Errorf("%s: %s GiB of 12 are allocated, want %d", c.name, gib(got), c.want)
		}
	}
}
