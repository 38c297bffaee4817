package scheduler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	kubetesting "k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"
	extender "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodestate"
	"github.com/gpuledger/gpuledger/kube/placement"
)

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// ownNames reads the names of gpuledger, as kube/dialect does without a configuration.
func ownNames(pod *corev1.Pod) (w placement.Wish, wants bool, err error) {
	add := func(c *corev1.Container, init bool) {
		if q, is := c.Resources.Limits["gpuledger.dev/gpu-memory"]; is {
			w.Demands = append(w.Demands, placement.Demand{Container: c.Name, Init: init, GPUs: 1,
				Memory: grant.Bytes(q.Value()) * grant.GiB})
		} else if q, is := c.Resources.Limits["gpuledger.dev/gpu"]; is {
			w.Demands = append(w.Demands, placement.Demand{Container: c.Name, Init: init,
				GPUs: int(q.Value()), Mode: grant.Exclusive})
		}
	}
	for i := range pod.Spec.InitContainers {
		add(&pod.Spec.InitContainers[i], true)
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i], false)
	}
	if pod.Labels["wrong"] != "" {
		return w, true, errors.New("the pod asks for what cannot be")
	}
	if owner := metav1.GetControllerOf(pod); owner != nil && pod.Labels["spread"] != "" {
		w.App = string(owner.UID)
	}
	return w, len(w.Demands) > 0, nil
}

var sharedModes = []grant.Mode{grant.Exclusive, grant.Timeslice, grant.Limit, grant.MPS}

// stateOf publishes GPUs of 16 GiB with this much free; one with all free is in no mode.
func stateOf(node string, free ...int) nodestate.Published {
	var s nodestate.Published
	for i, gib := range free {
		g := nodestate.PublishedGPU{UUID: fmt.Sprintf("GPU-%s-%d", node, i), Index: i, Memory: 16 * grant.GiB,
			Free: grant.Bytes(gib) * grant.GiB, Compute: 100, Modes: sharedModes}
		if gib < 16 {
			g.Mode = grant.Limit
		}
		s.GPUs = append(s.GPUs, g)
	}
	return s
}

func nodeOf(t testing.TB, name string, s nodestate.Published) *corev1.Node {
	text, err := s.Encode()
	must(t, err)
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Annotations: map[string]string{nodestate.Annotation: text}}}
}

var oneUnit = *resource.NewQuantity(1, resource.DecimalSI)

// podOf is a pod of one container that asks for GiB of a GPU.
func podOf(name string, gib int) *corev1.Pod {
	return podWith(name, corev1.ResourceList{
		"gpuledger.dev/gpu-memory": *resource.NewQuantity(int64(gib), resource.DecimalSI)})
}

func podWith(name string, limits corev1.ResourceList) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team",
		UID: types.UID("uid-" + name), ResourceVersion: "1"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none",
			Resources: corev1.ResourceRequirements{Limits: limits}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending}}
}

// clock is a time that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// world is an API that binds pods as the API server does, and processes that place pods.
type world struct {
	testing.TB
	client *fake.Clientset
	clock  *clock
	shown  toolscache.Indexer
	// answer, if it is set, is what the caller gets instead of the API server's answer to a
	// binding.
	answer func(written bool) error
	before func() // what happens before a binding is written
}

func newWorld(t testing.TB, objects ...runtime.Object) *world {
	w := &world{TB: t, client: fake.NewClientset(objects...), clock: &clock{now: time.Unix(1_800_000_000, 0)},
		shown: toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, nil)}
	w.client.PrependReactor("create", "pods", func(a kubetesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "binding" {
			return false, nil, nil
		}
		if w.before != nil {
			w.before()
		}
		b := a.(kubetesting.CreateAction).GetObject().(*corev1.Binding)
		err := w.write(b)
		if w.answer != nil {
			err = w.answer(err == nil)
		}
		return true, b, err
	})
	return w
}

// write does what the API server's registry does with a binding.
func (w *world) write(b *corev1.Binding) error {
	pods := corev1.Resource("pods")
	object, err := w.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), b.Namespace, b.Name)
	if err != nil {
		return err
	}
	pod := object.(*corev1.Pod).DeepCopy()
	switch {
	case b.UID != pod.UID || b.ResourceVersion != "" && b.ResourceVersion != pod.ResourceVersion:
		return apierrors.NewConflict(pods, b.Name, errors.New("it has changed"))
	case pod.Spec.NodeName != "":
		return apierrors.NewConflict(pods, b.Name, errors.New("it is assigned already"))
	}
	pod.Spec.NodeName = b.Target.Name
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	maps.Copy(pod.Annotations, b.Annotations)
	pod.ResourceVersion += "1"
	return w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, pod.Namespace)
}

// process is a scheduler that does not follow the API by itself: tests show it what it sees.
func (w *world) process() *Scheduler {
	s := New(Config{Client: w.client, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: w.clock.Now,
		Wish: ownNames, MoveAfter: 15 * time.Second})
	s.synced.Store(true)
	s.events = &recorder{}
	s.pods = corelisters.NewPodLister(w.shown)
	w.sees(s)
	return s
}

// sees shows a process all of the API.
func (w *world) sees(s *Scheduler) {
	w.Helper()
	nodes, err := w.client.CoreV1().Nodes().List(w.Context(), metav1.ListOptions{})
	must(w, err)
	for i := range nodes.Items {
		s.cache.node(&nodes.Items[i])
	}
	pods, err := w.client.CoreV1().Pods("").List(w.Context(), metav1.ListOptions{})
	must(w, err)
	for i := range pods.Items {
		must(w, w.shown.Add(&pods.Items[i]))
		s.pod(&pods.Items[i])
	}
}

func (w *world) created(pods ...*corev1.Pod) {
	w.Helper()
	for _, p := range pods {
		_, err := w.client.CoreV1().Pods(p.Namespace).Create(w.Context(), p, metav1.CreateOptions{})
		must(w, err)
	}
}

func (w *world) podNamed(name string) *corev1.Pod {
	w.Helper()
	pod, err := w.client.CoreV1().Pods("team").Get(w.Context(), name, metav1.GetOptions{})
	must(w, err)
	return pod
}

// bound is where a pod is, and its GPUs.
func (w *world) bound(name string) string {
	w.Helper()
	pod := w.podNamed(name)
	if pod.Spec.NodeName == "" {
		return "waits"
	}
	return pod.Spec.NodeName + " " + pod.Annotations[nodestate.KeyGPUs+"main"]
}

type recorder struct {
	mu  sync.Mutex
	all []string
}

func (r *recorder) Event(_ runtime.Object, _, reason, message string) {
	r.Eventf(nil, "", reason, "%s", message)
}

func (r *recorder) Eventf(_ runtime.Object, _, reason, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, reason+": "+fmt.Sprintf(format, args...))
}

func (r *recorder) AnnotatedEventf(o runtime.Object, _ map[string]string, kind, reason, format string,
	args ...any) {
	r.Eventf(o, kind, reason, format, args...)
}

// call calls the extender over HTTP.
func call(t testing.TB, s *Scheduler, verb string, args, answer any) int {
	t.Helper()
	server := httptest.NewServer(s.Handler())
	defer server.Close()
	body, err := json.Marshal(args)
	must(t, err)
	r, err := http.Post(server.URL+"/"+verb, "application/json", bytes.NewReader(body))
	must(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	must(t, err)
	if r.StatusCode == http.StatusOK {
		must(t, json.Unmarshal(text, answer))
	}
	return r.StatusCode
}

// filtered are the nodes for a pod, or why there are none.
func filtered(t testing.TB, s *Scheduler, pod *corev1.Pod, nodes ...string) string {
	t.Helper()
	var r extender.ExtenderFilterResult
	if code := call(t, s, "filter", extender.ExtenderArgs{Pod: pod, NodeNames: &nodes}, &r); code != 200 {
		return http.StatusText(code)
	}
	if len(*r.NodeNames) > 0 {
		return strings.Join(*r.NodeNames, ",")
	}
	reasons := slices.Collect(maps.Values(r.FailedAndUnresolvableNodes))
	slices.Sort(reasons)
	return strings.Join(slices.Compact(reasons), "; ")
}

// bind calls the extender's bind, and returns its error.
func bind(t testing.TB, s *Scheduler, pod, node string) string {
	t.Helper()
	var r extender.ExtenderBindingResult
	call(t, s, "bind", extender.ExtenderBindingArgs{PodName: pod, PodNamespace: "team",
		PodUID: types.UID("uid-" + pod), Node: node}, &r)
	return r.Error
}

func want(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\ngot  %s\nwant %s", what, got, want)
	}
}

func TestFilter(t *testing.T) {
	w := newWorld(t, nodeOf(t, "a", stateOf("a", 6, 2)), nodeOf(t, "b", stateOf("b", 16)),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "plain"}})
	s := w.process()
	want(t, "it fits", filtered(t, s, podOf("p", 6), "a", "b", "plain"), "a,b")
	want(t, "it fits on one", filtered(t, s, podOf("p", 8), "a", "b", "plain"), "b")
	want(t, "the closest fit", filtered(t, s, podOf("p", 8), "a", "plain"),
		"no GPU has 8GiB free in mode limit: the most is 6GiB, GPU 0 of node a")
	want(t, "nodes that are not ours", filtered(t, s, podOf("p", 1), "plain", "gone"),
		"no node that the pod could go to publishes GPUs of gpuledger")
	want(t, "no GPU", filtered(t, s, podWith("p", nil), "a", "plain"), "a,plain")
	wrong := podOf("p", 1)
	wrong.Labels = map[string]string{"wrong": "yes"}
	want(t, "what cannot be", filtered(t, s, wrong, "a"), "the pod asks for what cannot be")
	own := podOf("p", 1)
	own.Annotations = map[string]string{nodestate.KeyGPUs + "main": "GPU-a-0"}
	want(t, "an allocation of its own", filtered(t, s, own, "a"), "the pod has the annotation "+
		"gpuledger.dev/gpus.main, which only the scheduler writes: leave it out")
	s.synced.Store(false)
	want(t, "before it has read the cluster", filtered(t, s, podOf("p", 1), "a"), "Service Unavailable")
}

// A kubelet that has just started offers nothing of the device plugin's, and would admit no pod.
func TestFilterLooksAtWhatTheKubeletOffers(t *testing.T) {
	offering := func(name, units string) *corev1.Node {
		n := nodeOf(t, name, stateOf(name, 16))
		n.Status.Allocatable = corev1.ResourceList{"gpuledger.dev/gpu-memory": resource.MustParse(units),
			"cpu": resource.MustParse("1")}
		return n
	}
	w := newWorld(t, offering("new", "0"), offering("old", "16"))
	s := w.process()
	p := podOf("p", 6)
	p.Spec.Containers[0].Resources.Limits["cpu"] = resource.MustParse("2") // kube-scheduler looks at that
	want(t, "one has none", filtered(t, s, p, "new", "old"), "old")
	want(t, "no other", filtered(t, s, p, "new"), "no node takes GPU pods now: node new has a kubelet that "+
		"offers less gpuledger.dev/gpu-memory than the pod asks for")
	w.created(p)
	want(t, "nor is it bound there", bind(t, s, "p", "new"), "no node takes GPU pods now: node new has a "+
		"kubelet that offers less gpuledger.dev/gpu-memory than the pod asks for")
}

// A node that its device plugin has left still has the annotation. A pod that asks by an annotation
// would start there without a GPU.
func TestFilterClosesNodesWithoutADevicePlugin(t *testing.T) {
	offering := func(name string, offers corev1.ResourceList) *corev1.Node {
		n := nodeOf(t, name, stateOf(name, 16))
		n.Status.Allocatable = offers
		return n
	}
	none := resource.MustParse("0")
	w := newWorld(t, offering("left", corev1.ResourceList{"gpuledger.dev/gpu-memory": none}),
		offering("none", corev1.ResourceList{"gpuledger.dev/gpu-memory": none, "gpuledger.dev/gpu": none}),
		offering("one", corev1.ResourceList{"gpuledger.dev/gpu-memory": none, "gpuledger.dev/gpu": oneUnit}),
		// so many units that they are not offered: the scheduler alone counts them
		offering("many", corev1.ResourceList{"cpu": oneUnit}))
	s := w.process()
	s.cache.offered = []string{"gpuledger.dev/gpu-memory", "gpuledger.dev/gpu"}
	w.sees(s)
	s.Wish = func(pod *corev1.Pod) (wish placement.Wish, wants bool, err error) {
		_, wants = pod.Annotations["gpu-fraction"]
		wish.Demands = []placement.Demand{{Container: "main", GPUs: 1, Part: 500}}
		return wish, wants, nil
	}
	p := podWith("p", nil)
	p.Annotations = map[string]string{"gpu-fraction": "0.5"}
	want(t, "two have left", filtered(t, s, p, "left", "none", "one", "many"), "one,many")
	want(t, "the reason", filtered(t, s, p, "left"), "no node takes GPU pods now: node left has a kubelet "+
		"that offers no GPUs: its device plugin has left, or is starting")
}

// A node that was given back still has the annotation. Another device plugin may offer one of our
// names there, and where pods ask only by annotations no device plugin offers anything.
func TestFilterClosesNodesThatWereGivenBack(t *testing.T) {
	node := func(name, label string, offers corev1.ResourceList) *corev1.Node {
		n := nodeOf(t, name, stateOf(name, 16))
		n.Labels, n.Status.Allocatable = map[string]string{"gpuledger.dev/node": label}, offers
		return n
	}
	others := corev1.ResourceList{"nvidia.com/gpu": oneUnit}
	for text, offered := range map[string][]string{"only annotations": nil,
		"a name of others": {"nvidia.com/gpu"}} {
		w := newWorld(t, node("back", "removed", nil), node("others", "removed", others),
			node("ours", "shared", others))
		s := w.process()
		s.cache.offered = offered
		w.sees(s)
		s.Wish = func(*corev1.Pod) (placement.Wish, bool, error) {
			return placement.Wish{Demands: []placement.Demand{{Container: "main", GPUs: 1, Part: 500}}},
				true, nil
		}
		want(t, text, filtered(t, s, podWith("p", nil), "back", "others", "ours"), "ours")
		want(t, "the reason", filtered(t, s, podWith("p", nil), "back"), "no node takes GPU pods now: "+
			"node back has left gpuledger: it has the label gpuledger.dev/node=removed")
	}
}

func TestFilterWithWholeNodes(t *testing.T) {
	w := newWorld(t, nodeOf(t, "a", stateOf("a", 6)), nodeOf(t, "b", stateOf("b", 16)))
	s := w.process()
	var r extender.ExtenderFilterResult
	call(t, s, "filter", extender.ExtenderArgs{Pod: podOf("p", 8),
		Nodes: &corev1.NodeList{Items: []corev1.Node{
			*nodeOf(t, "a", stateOf("a", 6)), *nodeOf(t, "b", stateOf("b", 16))}}}, &r)
	if r.Nodes == nil || len(r.Nodes.Items) != 1 || r.Nodes.Items[0].Name != "b" || r.NodeNames != nil {
		t.Errorf("got %+v", r)
	}
}

func TestPrioritize(t *testing.T) {
	w := newWorld(t, nodeOf(t, "a", stateOf("a", 6)), nodeOf(t, "b", stateOf("b", 16)),
		nodeOf(t, "c", stateOf("c", 16, 16)))
	s := w.process()
	var list extender.HostPriorityList
	names := []string{"a", "b", "c"}
	call(t, s, "prioritize", extender.ExtenderArgs{Pod: podOf("p", 4), NodeNames: &names}, &list)
	if !slices.IsSortedFunc(list, func(x, y extender.HostPriority) int { return int(y.Score - x.Score) }) ||
		list[0].Score == list[1].Score || list[1].Score == list[2].Score {
		t.Errorf("got %+v", list)
	}
}

func TestBind(t *testing.T) {
	pod := podOf("p", 4)
	pod.Spec.InitContainers = []corev1.Container{{Name: "first",
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
			"gpuledger.dev/gpu-memory": resource.MustParse("6")}}}}
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "whole",
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
			"gpuledger.dev/gpu": resource.MustParse("2")}}})
	w := newWorld(t, nodeOf(t, "a", stateOf("a", 16, 16, 8)), pod)
	s := w.process()
	want(t, "bound", bind(t, s, "p", "a"), "")
	got := w.podNamed("p")
	wanted := map[string]string{
		"gpuledger.dev/gpus.first": "GPU-a-2", "gpuledger.dev/memory.first": "6GiB",
		"gpuledger.dev/mode.first": "limit", "gpuledger.dev/gpus.main": "GPU-a-2",
		"gpuledger.dev/memory.main": "4GiB", "gpuledger.dev/mode.main": "limit",
		"gpuledger.dev/gpus.whole": "GPU-a-0,GPU-a-1", "gpuledger.dev/mode.whole": "exclusive"}
	if got.Spec.NodeName != "a" || !maps.Equal(got.Annotations, wanted) {
		t.Errorf("node %q, annotations %v", got.Spec.NodeName, got.Annotations)
	}
	want(t, "once more", bind(t, s, "p", "a"), "cannot bind pod p: it is on node a already")
	w.created(podOf("q", 3), podOf("r", 2))
	want(t, "more than is left", bind(t, s, "q", "a"),
		"no GPU has 3GiB free in mode limit: the most is 2GiB, GPU 2 of node a")
	want(t, "what is left beside the larger of the init container and the other", bind(t, s, "r", "a"), "")
	w.created(podWith("cpu", nil))
	want(t, "a pod without GPUs", bind(t, s, "cpu", "a"), "")
	want(t, "a pod without GPUs", w.bound("cpu"), "a ")
}

// With keys of more than 63 bytes a pod could be bound, but no kubelet could change its status.
func TestANameThatIsTooLongForAnnotations(t *testing.T) {
	named := func(length int, resource string) *corev1.Pod {
		p := podWith("p", corev1.ResourceList{corev1.ResourceName(resource): oneUnit})
		p.Spec.Containers[0].Name = strings.Repeat("n", length)
		return p
	}
	w := newWorld(t, nodeOf(t, "a", stateOf("a", 16)))
	s := w.process()
	const memory, gpu = "gpuledger.dev/gpu-memory", "gpuledger.dev/gpu"
	want(t, "a share", filtered(t, s, named(56, memory), "a"), "a")
	want(t, "a whole GPU", filtered(t, s, named(58, gpu), "a"), "a")
	want(t, "too long for a share", filtered(t, s, named(57, memory), "a"), `the name of container "`+
		strings.Repeat("n", 57)+`" is too long for the annotation that allocates it a GPU `+
		"(gpuledger.dev/memory.NAME): give it a name of at most 56 characters")
	tooLong := named(59, gpu)
	why := `the name of container "` + strings.Repeat("n", 59) + `" is too long for the annotation that ` +
		"allocates it a GPU (gpuledger.dev/mode.NAME): give it a name of at most 58 characters"
	want(t, "too long for a whole GPU", filtered(t, s, tooLong, "a"), why)
	w.created(tooLong)
	want(t, "bound", bind(t, s, "p", "a"), why)
	want(t, "bound", w.bound("p"), "waits")
	if err := nameTooLong(&placement.Wish{Demands: []placement.Demand{
		{Container: strings.Repeat("n", 56), Compute: 10}}}); err == nil ||
		!strings.Contains(err.Error(), "at most 55 characters") {
		t.Errorf("a share of compute: got %v", err)
	}
}

// A pod's own annotations may leave no room for those of its GPUs.
func TestAPodWhoseAnnotationsAreFull(t *testing.T) {
	full := podOf("p", 16)
	full.Annotations = map[string]string{"note": strings.Repeat("x", 256<<10-4)}
	w := newWorld(t, nodeOf(t, "a", stateOf("a", 16)), full, podOf("q", 16))
	s := w.process()
	want(t, "full", bind(t, s, "p", "a"), "cannot bind pod p: with its GPUs the API would not take it: "+
		"metadata.annotations: Too long: may not be more than 262144 bytes")
	want(t, "full", w.bound("p"), "waits")
	want(t, "its GPU is another pod's", bind(t, s, "q", "a"), "")
}

// Two pods at once, before the API has shown either: the second finds what is left.
func TestPodsAtOnceHaveDifferentRoom(t *testing.T) {
	const count = 40
	w := newWorld(t, nodeOf(t, "a", stateOf("a", 16, 16)))
	s := w.process()
	for i := range count {
		w.created(podOf(fmt.Sprint("p", i), 4))
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	fits := 0
	for i := range count {
		all.Go(func() {
			if bind(t, s, fmt.Sprint("p", i), "a") == "" {
				mu.Lock()
				fits++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	on := map[string]int{}
	for i := range count {
		on[w.bound(fmt.Sprint("p", i))]++
	}
	if fits != 8 || on["a GPU-a-0"] != 4 || on["a GPU-a-1"] != 4 {
		t.Errorf("%d fit: %v", fits, on)
	}
}

// The answer to a binding can be lost. What may be written counts until the API has shown it.
func TestABindingWithoutAnAnswer(t *testing.T) {
	lost := func(bool) error { return errors.New("connection reset") }
	for name, c := range map[string]struct {
		answer  func(written bool) error
		written bool
		free    string
	}{
		"written, and the answer is lost": {lost, true, "no GPU has 16GiB free"},
		"refused by the API":              {nil, false, "a"},
		"an error of the server": {func(bool) error {
			return apierrors.NewInternalError(errors.New("etcd"))
		}, true, "no GPU has 16GiB free"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nodeOf(t, "a", stateOf("a", 16)), podOf("p", 4))
			s := w.process()
			w.answer = c.answer
			if !c.written {
				w.answer = func(bool) error {
					return apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("no"))
				}
			}
			if said := bind(t, s, "p", "a"); !strings.Contains(said, "cannot bind pod p to node a: ") {
				t.Errorf("got %q", said)
			}
			if got := filtered(t, s, podOf("q", 16), "a"); !strings.HasPrefix(got, c.free) {
				t.Errorf("got %q, want %q", got, c.free)
			}
			want(t, "the pod itself is placed as if it had nothing", filtered(t, s, podOf("p", 16), "a"), "a")
			w.clock.pass(uncertain)
			must(t, s.move(t.Context()))
			want(t, "a binding that the API never shows is forgotten", filtered(t, s, podOf("q", 16), "a"),
				"a")
			w.sees(s)
			if got := filtered(t, s, podOf("q", 16), "a"); c.written && !strings.HasPrefix(got, c.free) {
				t.Errorf("the API has shown it: %q", got)
			}
		})
	}
}

// What a watch still shows of a pod that was bound a moment ago takes nothing back.
func TestAPodThatIsShownAsItWas(t *testing.T) {
	w := newWorld(t, nodeOf(t, "a", stateOf("a", 16)), podOf("p", 10))
	s := w.process()
	before := w.podNamed("p")
	want(t, "bound", bind(t, s, "p", "a"), "")
	s.pod(before)
	want(t, "it still counts", filtered(t, s, podOf("q", 7), "a"),
		"no GPU has 7GiB free in mode limit: the most is 6GiB, GPU 0 of node a")
}

// A pod that changes while it is bound is read again.
func TestAPodThatChangesMeanwhile(t *testing.T) {
	w := newWorld(t, nodeOf(t, "a", stateOf("a", 16)), podOf("p", 4))
	s := w.process()
	once := sync.OnceFunc(func() { // the client is locked meanwhile
		object, err := w.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), "team", "p")
		must(t, err)
		pod := object.(*corev1.Pod).DeepCopy()
		pod.Spec.Containers[0].Resources.Limits["gpuledger.dev/gpu-memory"] = resource.MustParse("6")
		pod.ResourceVersion = "2"
		must(t, w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "team"))
	})
	w.before = once
	want(t, "bound", bind(t, s, "p", "a"), "")
	want(t, "what it asks for in the end", w.podNamed("p").Annotations[nodestate.KeyMemory+"main"], "6GiB")
	want(t, "what is left", filtered(t, s, podOf("q", 11), "a"),
		"no GPU has 11GiB free in mode limit: the most is 10GiB, GPU 0 of node a")
}

// A process that starts knows what was bound before it, and what nodes have adopted of that.
func TestWhatAProcessReads(t *testing.T) {
	w := newWorld(t, nodeOf(t, "a", stateOf("a", 16)), podOf("p", 4), podOf("q", 8))
	first := w.process()
	want(t, "bound", bind(t, first, "p", "a")+bind(t, first, "q", "a"), "")
	next := w.process()
	free := "no GPU has 5GiB free in mode limit: the most is 4GiB, GPU 0 of node a"
	want(t, "another process", filtered(t, next, podOf("r", 5), "a"), free)
	adopting := stateOf("a", 12)
	adopting.Adopted = []string{"uid-p/main"}
	next.cache.node(nodeOf(t, "a", adopting))
	want(t, "the node has adopted one", filtered(t, next, podOf("r", 5), "a"), free)
	pod := w.podNamed("p")
	pod.Status.Phase = corev1.PodSucceeded
	next.pod(pod)
	want(t, "its pod has ended, and the node has not said so", filtered(t, next, podOf("r", 5), "a"), free)
	next.cache.node(nodeOf(t, "a", stateOf("a", 16)))
	want(t, "it has ended", filtered(t, next, podOf("r", 8), "a"), "a")
	next.podGone(w.podNamed("q"))
	want(t, "all are gone", filtered(t, next, podOf("r", 16), "a"), "a")
}

// Two processes that do not know of each other yet may choose the same GPU. The node's ledger
// grants it once, and the other pod is moved.
func TestTwoProcessesAndTheLedger(t *testing.T) {
	p, q := podOf("p", 10), podOf("q", 10)
	yes := true
	for _, pod := range []*corev1.Pod{p, q} {
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "set", UID: "u",
			Controller: &yes}}
	}
	w := newWorld(t, nodeOf(t, "a", stateOf("a", 16)), nodeOf(t, "b", stateOf("b", 16)), p, q)
	one, two := w.process(), w.process()
	want(t, "both bind", bind(t, one, "p", "a")+bind(t, two, "q", "a"), "")
	w.sees(one)
	// the ledger of the node has granted p
	state := stateOf("a", 6)
	state.Adopted = []string{"uid-p/main"}
	one.cache.node(nodeOf(t, "a", state))
	want(t, "nothing is promised twice", filtered(t, one, podOf("r", 1), "a"),
		"no GPU has 1GiB free in mode limit: the most is 0MiB, GPU 0 of node a")
	one.pod(waitingFor(w.podNamed("q"), "RunContainerError", "OCI runtime create failed: gpuledger: refused "+
		"(no-capacity): container \"main\" is allocated 10GiB over 1 GPU(s)"))
	must(t, one.move(t.Context()))
	want(t, "the kubelet may try it again first", w.bound("q"), "a GPU-a-0")
	w.clock.pass(15 * time.Second)
	must(t, one.move(t.Context()))
	if _, err := w.client.CoreV1().Pods("team").Get(t.Context(), "q",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it was not moved: %v", err)
	}
	want(t, "its event", strings.Join(one.events.(*recorder).all, "\n"),
		"GPUMoved: node a refuses the pod's GPUs (no-capacity): the pod is deleted, so that its ReplicaSet "+
			"set places another one")
	var list extender.HostPriorityList
	names := []string{"a", "b"}
	one.podGone(q)
	call(t, one, "prioritize", extender.ExtenderArgs{Pod: podOf("r", 4), NodeNames: &names}, &list)
	if list[0].Score != 0 || list[1].Score == 0 {
		t.Errorf("the node that has refused does not come last: %v", list)
	}
	other := podOf("other", 4)
	other.Namespace = "other-team"
	call(t, one, "prioritize", extender.ExtenderArgs{Pod: other, NodeNames: &names}, &list)
	if list[0].Score == 0 {
		t.Errorf("it comes last for others, too: %v", list)
	}
}

func waitingFor(pod *corev1.Pod, reason, message string) *corev1.Pod {
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
	return pod
}

func TestWhichPodsAreMoved(t *testing.T) {
	const refusedFor = "gpuledger: refused (%s): container \"main\" ..."
	yes := true
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		code   grant.Code
		event  string
	}{
		"no room":          {nil, grant.NoCapacity, "GPUMoved"},
		"another mode":     {nil, grant.ModeConflict, "GPUMoved"},
		"an unhealthy GPU": {nil, grant.GPUUnhealthy, "GPUMoved"},
		"its own fault":    {nil, grant.PrivilegedGPU, ""},
		"without an owner": {func(p *corev1.Pod) { p.OwnerReferences = nil }, grant.NoCapacity, "GPURefused"},
		"of a DaemonSet": {func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" },
			grant.NoCapacity, "GPURefused"},
		"not placed by us": {func(p *corev1.Pod) { p.Annotations = nil }, grant.NoCapacity, ""},
		"that ends anyway": {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} },
			grant.NoCapacity, ""},
		"that runs meanwhile": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{
				Running: &corev1.ContainerStateRunning{}}
		}, grant.NoCapacity, ""},
		"between two tries": {func(p *corev1.Pod) {
			text := p.Status.ContainerStatuses[0].State.Waiting.Message
			p.Status.ContainerStatuses[0].State.Waiting.Message = "back-off 10s restarting failed container"
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated =
				&corev1.ContainerStateTerminated{Reason: "StartError", Message: text}
		}, grant.NoCapacity, "GPUMoved"},
		"created by CRI-O": {func(p *corev1.Pod) {
			w := p.Status.ContainerStatuses[0].State.Waiting
			w.Reason, w.Message = "CreateContainerError", "container create failed: "+w.Message+"\nhint: ..."
		}, grant.NoCapacity, "GPUMoved"},
		"with such a text in its image's name": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Waiting.Reason = "InvalidImageName"
		}, grant.NoCapacity, ""},
		"with such a text as its program": {func(p *corev1.Pod) {
			w := p.Status.ContainerStatuses[0].State.Waiting
			w.Message = `OCI runtime create failed: runc create failed: unable to start container process: ` +
				`error during container init: exec: "` + w.Message + `": executable file not found in $PATH`
		}, grant.NoCapacity, ""},
		"with such a text as its directory": {func(p *corev1.Pod) {
			w := p.Status.ContainerStatuses[0].State.Waiting
			w.Message = "failed to create containerd task: mkdir /run/" + w.Message + ": not a directory"
		}, grant.NoCapacity, ""},
		"that printed such a text itself": {func(p *corev1.Pod) {
			text := p.Status.ContainerStatuses[0].State.Waiting.Message
			p.Status.ContainerStatuses[0].State.Waiting.Message = "back-off 10s restarting failed container"
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated =
				&corev1.ContainerStateTerminated{Reason: "Error", Message: text}
		}, grant.NoCapacity, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podOf("p", 1)
			pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "set", UID: "u",
				Controller: &yes}}
			w := newWorld(t, nodeOf(t, "a", stateOf("a", 16)), pod)
			s := w.process()
			want(t, "bound", bind(t, s, "p", "a"), "")
			pod = waitingFor(w.podNamed("p"), "RunContainerError", fmt.Sprintf(refusedFor, c.code))
			if c.change != nil {
				c.change(pod)
			}
			s.pod(pod)
			w.clock.pass(time.Minute)
			must(t, s.move(t.Context()), s.move(t.Context()))
			events := s.events.(*recorder).all
			if c.event == "" && len(events) > 0 || c.event != "" &&
				(len(events) != 1 || !strings.HasPrefix(events[0], c.event+": ")) {
				t.Errorf("events %q, want %q", events, c.event)
			}
			_, err := w.client.CoreV1().Pods("team").Get(t.Context(), "p", metav1.GetOptions{})
			if apierrors.IsNotFound(err) != (c.event == "GPUMoved") {
				t.Errorf("it is deleted: %v", err)
			}
		})
	}
}

// kube-scheduler may ask before this process has read what has changed. Then nobody else would have
// the pod tried again.
func TestAWaitingPodIsTriedAgainWhenThereIsRoom(t *testing.T) {
	w := newWorld(t, nodeOf(t, "a", stateOf("a", 2)), podOf("p", 4), podOf("large", 16))
	s := w.process()
	tried := func() string {
		must(t, s.retry(t.Context()))
		return w.podNamed("p").Annotations[keyTried]
	}
	for _, name := range []string{"p", "large"} {
		if got := filtered(t, s, w.podNamed(name), "a"); !strings.HasPrefix(got, "no GPU has") {
			t.Fatal(got)
		}
	}
	w.clock.pass(time.Minute)
	want(t, "without room", tried(), "")
	s.cache.node(nodeOf(t, "a", stateOf("a", 8)))
	want(t, "kube-scheduler may do it", tried(), "")
	w.clock.pass(grace)
	first := tried()
	if first == "" {
		t.Error("it is not tried again")
	}
	w.clock.pass(pause / 2)
	want(t, "not at once again", tried(), first)
	w.clock.pass(pause)
	if tried() == first {
		t.Error("it is tried once only")
	}
	want(t, "no room for the other one", w.podNamed("large").Annotations[keyTried], "")
	want(t, "bound", bind(t, s, "p", "a"), "")
	last := w.podNamed("p").Annotations[keyTried]
	w.sees(s)
	w.clock.pass(time.Hour)
	want(t, "it is bound", tried(), last)
}

// Of more pods than are tried at once, those that have to wait are next.
func TestEachWaitingPodHasItsTurn(t *testing.T) {
	objects := []runtime.Object{nodeOf(t, "a", stateOf("a", 2))}
	var names []string
	for i := range atOnce + 5 {
		names = append(names, fmt.Sprintf("p%02d", i))
		objects = append(objects, podOf(names[i], 4))
	}
	w := newWorld(t, objects...)
	s := w.process()
	for _, name := range names {
		filtered(t, s, w.podNamed(name), "a")
	}
	w.clock.pass(time.Minute)
	s.cache.node(nodeOf(t, "a", stateOf("a", 8)))
	must(t, s.retry(t.Context()))
	w.clock.pass(grace)
	must(t, s.retry(t.Context()), s.retry(t.Context()))
	for _, name := range names {
		if w.podNamed(name).Annotations[keyTried] == "" {
			t.Errorf("%s is not tried", name)
		}
	}
}

// Room can appear between the filter's answer and its being noted.
func TestAPodThatIsRejectedWhileRoomAppears(t *testing.T) {
	w := newWorld(t, nodeOf(t, "a", stateOf("a", 8)), podOf("p", 4), podOf("large", 16))
	s := w.process()
	filtered(t, s, w.podNamed("large"), "a")
	must(t, s.retry(t.Context()))
	s.waiting.rejected(w.podNamed("p"), []string{"a"}, w.clock.Now())
	must(t, s.retry(t.Context()))
	w.clock.pass(grace)
	must(t, s.retry(t.Context()))
	if w.podNamed("p").Annotations[keyTried] == "" {
		t.Error("it is not tried again")
	}
}

// After a restart nothing is known of a pod's filter: what its scheduler has said of it is enough,
// once that scheduler has asked. The pods of a scheduler that never asks are left alone.
func TestAPodThatWaitedForTheProcessBefore(t *testing.T) {
	objects := []runtime.Object{nodeOf(t, "a", stateOf("a", 16)), podOf("other", 1)}
	for name, scheduler := range map[string]string{"p": "", "batch": "volcano"} {
		pod := podOf(name, 4)
		pod.Spec.SchedulerName = scheduler
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled,
			Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		objects = append(objects, pod)
	}
	w := newWorld(t, objects...)
	s := w.process()
	tried := func(name string) bool { return w.podNamed(name).Annotations[keyTried] != "" }
	for _, asked := range []bool{false, true} {
		if asked {
			filtered(t, s, w.podNamed("other"), "a")
		}
		must(t, s.retry(t.Context()))
		w.clock.pass(grace)
		must(t, s.retry(t.Context()))
		if tried("p") != asked || tried("batch") {
			t.Errorf("its scheduler has asked: %v; it is tried again: %v, another's pod: %v", asked,
				tried("p"), tried("batch"))
		}
	}
}

func TestLabelsOfANode(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ labels, want string }{
		{"", "limit "}, {"ack.node.gpu.schedule=cgpu", "limit "},
		{"ack.node.gpu.schedule=core_mem", "limit "},
		{"ack.node.gpu.schedule=share", "timeslice "}, {"ack.node.gpu.schedule=mps", "mps "},
		{"gpuledger.dev/mode=timeslice ack.node.gpu.schedule=mps", "timeslice "},
		{"ack.node.gpu.schedule=default", "no GPU gives shares: node a is for whole GPUs"},
		{"gpuledger.dev/mode=mig", "no node takes GPU pods now: node a has the label " +
			"gpuledger.dev/mode=mig, which is not known"},
		{"ack.node.gpu.schedule=mig", "no node takes GPU pods now: node a has the label " +
			"ack.node.gpu.schedule=mig, which is not known"},
		{"gpuledger.dev/placement=spread", "limit spread"}, {"ack.node.gpu.placement=binpack", "limit "},
		{"gpuledger.dev/placement=most", "no node takes GPU pods now: node a has the label " +
			"gpuledger.dev/placement=most, which is not known"},
	} {
		node := nodeOf(t, "a", stateOf("a", 16, 8))
		node.Labels = map[string]string{}
		for _, label := range strings.Fields(c.labels) {
			key, value, _ := strings.Cut(label, "=")
			node.Labels[key] = value
		}
		if strings.Contains(c.want, "timeslice") || strings.Contains(c.want, "mps") {
			s := stateOf("a", 16, 16)
			text, err := s.Encode()
			must(t, err)
			node.Annotations[nodestate.Annotation] = text
		}
		s := w.process()
		s.cache.node(node)
		pod := podOf("p", 1)
		got := filtered(t, s, pod, "a")
		if got == "a" {
			annotations, why := s.cache.assume(pod,
				&placement.Wish{Demands: []placement.Demand{{Container: "main", GPUs: 1, Memory: grant.GiB}}},
				"a", w.clock.Now().Add(time.Hour))
			got = annotations[nodestate.KeyMode+"main"] + why + " "
			if annotations[nodestate.KeyGPUs+"main"] == "GPU-a-0" && strings.Contains(c.labels, "spread") {
				got += "spread"
			}
		}
		want(t, c.labels, got, c.want)
	}
}

// Replicas of one application go to different GPUs, also before the API has shown the first.
func TestReplicasGoToDifferentGPUs(t *testing.T) {
	w := newWorld(t, nodeOf(t, "a", stateOf("a", 16, 16, 16)))
	s := w.process()
	yes, on := true, map[string]int{}
	for i := range 4 {
		pod := podOf(fmt.Sprint("p", i), 2)
		pod.Labels = map[string]string{"spread": "yes"}
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "set", UID: "u",
			Controller: &yes}}
		w.created(pod)
		want(t, "bound", bind(t, s, pod.Name, "a"), "")
		on[w.bound(pod.Name)]++
	}
	if len(on) != 3 {
		t.Errorf("got %v", on)
	}
}

// What an informer shows twice, late or in any order changes nothing of the sum.
func TestRunFollowsTheAPI(t *testing.T) {
	w := newWorld(t, nodeOf(t, "a", stateOf("a", 16)), podOf("p", 4))
	s := New(Config{Client: w.client, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now,
		Wish: ownNames, MoveAfter: time.Second})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Run(ctx, func(_ string, do func(context.Context) error) { <-ctx.Done() })
	}()
	eventually(t, "it has read the cluster", func() bool { return s.Ready() == nil })
	// unlike a real API, this one keeps nothing for a watch that comes later
	eventually(t, "it watches", func() bool {
		watched := map[string]bool{}
		for _, a := range w.client.Actions() {
			watched[a.GetResource().Resource] = watched[a.GetResource().Resource] || a.GetVerb() == "watch"
		}
		return watched["pods"] && watched["nodes"]
	})
	want(t, "bound", bind(t, s, "p", "a"), "")
	must(t, w.client.CoreV1().Pods("team").Delete(t.Context(), "p", metav1.DeleteOptions{}))
	eventually(t, "it is gone", func() bool { return filtered(t, s, podOf("q", 16), "a") == "a" })
	must(t, w.client.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}))
	eventually(t, "the node is gone", func() bool { return filtered(t, s, podOf("q", 16), "a") != "a" })
	stop()
	must(t, <-ended)
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}
