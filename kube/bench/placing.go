package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	extender "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodestate"
	"github.com/gpuledger/gpuledger/kube/placement"
	"github.com/gpuledger/gpuledger/kube/scheduler"
)

// placing measures the extender: how well it packs, and how fast it answers.
func placing(ctx context.Context, o options) error {
	packing(o)
	return filtering(ctx, o)
}

// The names by which the pods of the bench ask, in MiB and in whole GPUs.
const (
	benchMemory = "bench/memory"
	benchGPUs   = "bench/gpus"
)

// benchWish reads a pod of the bench.
func benchWish(pod *corev1.Pod) (w placement.Wish, wants bool, err error) {
	limits := pod.Spec.Containers[0].Resources.Limits
	d := placement.Demand{Container: pod.Spec.Containers[0].Name, GPUs: 1}
	if q, is := limits[benchMemory]; is {
		d.Memory = grant.Bytes(q.Value()) * grant.MiB
	} else if q, is := limits[benchGPUs]; is {
		d.GPUs, d.Mode = int(q.Value()), grant.Exclusive
	} else {
		return w, false, nil
	}
	return placement.Wish{Demands: []placement.Demand{d}}, true, nil
}

// pod returns a pod of the trace.
func (s size) pod(name string) *corev1.Pod {
	limits := corev1.ResourceList{benchGPUs: *resource.NewQuantity(int64(s.gpus), resource.DecimalSI)}
	if s.milli < 1000 {
		limits = corev1.ResourceList{benchMemory: *resource.NewQuantity(
			int64(s.memory(memoryOfGPU)/grant.MiB), resource.DecimalSI)}
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none",
			Resources: corev1.ResourceRequirements{Limits: limits}}}}}
}

// emptyNodes are nodes without grants.
func emptyNodes(nodes, gpus int) []*placement.Node {
	all := make([]*placement.Node, nodes)
	for i := range all {
		all[i] = &placement.Node{Name: nodeName(i)}
		for g := range gpus {
			all[i].GPUs = append(all[i].GPUs, placement.GPU{UUID: fmt.Sprintf("GPU-%04d-%d", i, g), Index: g,
				Memory: memoryOfGPU, Free: memoryOfGPU, Compute: 100,
				Modes: []grant.Mode{grant.Exclusive, grant.Limit}})
		}
	}
	return all
}

// put places a pod on the node with the best score, as kube-scheduler does if nothing else differs.
func put(w *placement.Wish, nodes []*placement.Node) (on *placement.Node, choices []placement.Choice) {
	best := -1
	for _, n := range nodes {
		if c, fits := placement.Place(w, n); fits {
			if score := placement.Score(w, n, c); score > best {
				best, on, choices = score, n, c
			}
		}
	}
	for _, c := range choices {
		for _, g := range c.GPUs {
			gpu := &on.GPUs[g]
			gpu.Mode = c.Mode
			gpu.Free -= c.Memory
			if c.Mode == grant.Exclusive {
				gpu.Free = 0
			}
		}
	}
	return on, choices
}

// packing compares what the extender's choices place, pod after pod as they come, with an offline
// best-fit decreasing that knows all pods.
func packing(o options) {
	capacity := grant.Bytes(o.packNodes*o.gpus) * memoryOfGPU
	for _, percent := range []int{90, 100, 120} {
		var worst, sum, reached float64 = 1, 0, 0
		for seed := range o.orders {
			pods := arrivals(rand.New(rand.NewPCG(uint64(seed), 1)), memoryOfGPU,
				capacity*grant.Bytes(percent)/100)
			offline := bestFitDecreasing(pods, o.packNodes, o.gpus)
			part := float64(online(pods, o)) / float64(offline)
			worst, sum = min(worst, part), sum+part
			reached += float64(offline) / float64(capacity)
		}
		n := float64(o.orders)
		fmt.Printf("packing: %d nodes with %d GPUs, pods of the trace for %d %% of the memory, in %d "+
			"orders: %.1f %% of what an offline best-fit decreasing places, %.1f %% at least; that places "+
			"%.1f %% of the memory\n", o.packNodes, o.gpus, percent, o.orders, 100*sum/n, 100*worst,
			100*reached/n)
	}
}

// online returns the memory of the pods that the extender's choices place.
func online(pods []size, o options) (placed grant.Bytes) {
	nodes := emptyNodes(o.packNodes, o.gpus)
	for i, s := range pods {
		w, _, _ := benchWish(s.pod(fmt.Sprint(i)))
		if on, _ := put(&w, nodes); on != nil {
			placed += s.memory(memoryOfGPU)
		}
	}
	return placed
}

// bestFitDecreasing returns the memory of the pods that an offline best fit places: the largest
// first, shares on the GPU with the least free, whole GPUs on the node with the fewest empty ones.
func bestFitDecreasing(pods []size, nodes, gpus int) (placed grant.Bytes) {
	free := make([][]grant.Bytes, nodes)
	for i := range free {
		free[i] = slices.Repeat([]grant.Bytes{memoryOfGPU}, gpus)
	}
	sorted := slices.Clone(pods)
	slices.SortStableFunc(sorted, func(a, b size) int {
		return cmp.Or(b.gpus-a.gpus, b.milli-a.milli)
	})
	for _, s := range sorted {
		fits := bestShare
		if s.milli == 1000 {
			fits = bestWhole
		}
		if fits(free, s) {
			placed += s.memory(memoryOfGPU)
		}
	}
	return placed
}

func bestShare(free [][]grant.Bytes, s size) bool {
	var best *grant.Bytes
	for _, node := range free {
		for g := range node {
			if node[g] >= s.memory(memoryOfGPU) && (best == nil || node[g] < *best) {
				best = &node[g]
			}
		}
	}
	if best != nil {
		*best -= s.memory(memoryOfGPU)
	}
	return best != nil
}

func bestWhole(free [][]grant.Bytes, s size) bool {
	var best []grant.Bytes
	fewest := 0
	for _, node := range free {
		empty := 0
		for _, f := range node {
			if f == memoryOfGPU {
				empty++
			}
		}
		if empty >= s.gpus && (best == nil || empty < fewest) {
			best, fewest = node, empty
		}
	}
	left := s.gpus
	for g := range best {
		if best[g] == memoryOfGPU && left > 0 {
			best[g] = 0
			left--
		}
	}
	return best != nil
}

// loaded returns nodes and pods of a cluster that is four fifths full. The nodes have adopted every
// second pod; the others are on their way.
func loaded(o options) (objects []runtime.Object, names []string) {
	nodes := emptyNodes(o.filterNodes, o.gpus)
	published := emptyNodes(o.filterNodes, o.gpus)
	adopted := map[string][]string{}
	capacity := grant.Bytes(o.filterNodes*o.gpus) * memoryOfGPU
	pods := arrivals(rand.New(rand.NewPCG(1, 2)), memoryOfGPU, capacity*4/5)
	for i, s := range pods {
		pod := s.pod(fmt.Sprintf("loaded-%d", i))
		w, _, _ := benchWish(pod)
		on, choices := put(&w, nodes)
		if on == nil {
			continue
		}
		pod.Spec.NodeName, pod.Status.Phase = on.Name, corev1.PodRunning
		pod.Annotations = annotated(on, choices[0])
		objects = append(objects, pod)
		if i%2 == 0 {
			continue
		}
		adopted[on.Name] = append(adopted[on.Name], pod.Name+"/main")
		at := slices.IndexFunc(published, func(n *placement.Node) bool { return n.Name == on.Name })
		for _, g := range choices[0].GPUs {
			gpu := &published[at].GPUs[g]
			if gpu.Mode, gpu.Free = choices[0].Mode, gpu.Free-choices[0].Memory; gpu.Mode == grant.Exclusive {
				gpu.Free = 0
			}
		}
	}
	for _, n := range published {
		objects, names = append(objects, nodeObject(n, adopted[n.Name])), append(names, n.Name)
	}
	return objects, names
}

func annotated(n *placement.Node, c placement.Choice) map[string]string {
	var uuids []string
	for _, g := range c.GPUs {
		uuids = append(uuids, n.GPUs[g].UUID)
	}
	all := map[string]string{"gpuledger.dev/gpus.main": strings.Join(uuids, ","),
		"gpuledger.dev/mode.main": string(c.Mode)}
	if c.Memory > 0 {
		all["gpuledger.dev/memory.main"] = c.Memory.String()
	}
	return all
}

func nodeObject(n *placement.Node, adopted []string) *corev1.Node {
	s := nodestate.Published{Adopted: adopted}
	for _, g := range n.GPUs {
		s.GPUs = append(s.GPUs, nodestate.PublishedGPU{UUID: g.UUID, Index: g.Index, Memory: g.Memory,
			Free: g.Free, Compute: g.Compute, Modes: g.Modes, Mode: g.Mode})
	}
	text, _ := s.Encode()
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name,
		Annotations: map[string]string{nodestate.Annotation: text}}}
}

// filtering measures the extender's filter over HTTP, while nodes publish changes.
func filtering(ctx context.Context, o options) error {
	objects, names := loaded(o)
	pods := len(objects) - len(names)
	client := fake.NewSimpleClientset(objects...)
	s := scheduler.New(scheduler.Config{Client: client, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Now: time.Now, Wish: benchWish, MoveAfter: time.Hour})
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- s.Run(ctx, func(string, func(context.Context) error) { <-ctx.Done() })
	}()
	defer func() { stop(); <-ended }()
	if err := until(ctx, "the extender has read the cluster",
		func() bool { return s.Ready() == nil }); err != nil {
		return err
	}
	go publishChanges(ctx, client, objects[pods:])
	server := httptest.NewServer(s.Handler())
	defer server.Close()
	random := rand.New(rand.NewPCG(3, 4))
	took := make([]time.Duration, o.filters)
	none, used := 0, cpu("self")
	sizes := arrivals(random, memoryOfGPU, grant.Bytes(8*o.filters)*memoryOfGPU)
	for i := range took {
		pod := sizes[i%len(sizes)].pod("asked")
		if i%4 == 0 { // it fits nowhere, and the answer says why
			pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{benchMemory: *resource.NewQuantity(
				int64(memoryOfGPU/grant.MiB)+1, resource.DecimalSI)}
		}
		args := extender.ExtenderArgs{Pod: pod, NodeNames: &names}
		began := time.Now()
		fit, err := filterOnce(server.URL, args)
		if err != nil {
			return err
		}
		took[i] = time.Since(began)
		if fit == 0 {
			none++
		}
	}
	fmt.Printf("filter: %d nodes with %d GPUs and %d pods, %d filters over HTTP while 100 nodes a second "+
		"publish: %s; %d found no node; CPU: %.1f ms for each, with the caller and the publishing\n",
		o.filterNodes, o.gpus, pods, o.filters, percentiles(took), none,
		1000*(cpu("self")-used)/float64(o.filters))
	return nil
}

// publishChanges changes a node every hundredth of a second.
func publishChanges(ctx context.Context, client kubernetes.Interface, nodes []runtime.Object) {
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
		n := nodes[i%len(nodes)].(*corev1.Node).DeepCopy()
		n.Labels = map[string]string{"changed": fmt.Sprint(i)}
		_, _ = client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
	}
}

func filterOnce(url string, args extender.ExtenderArgs) (fit int, err error) {
	body, err := json.Marshal(args)
	if err != nil {
		return 0, err
	}
	answer, err := http.Post(url+"/filter", "application/json", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	var r extender.ExtenderFilterResult
	if err := json.NewDecoder(answer.Body).Decode(&r); err != nil {
		return 0, err
	}
	return len(*r.NodeNames), nil
}
