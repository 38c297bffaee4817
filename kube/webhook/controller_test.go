package webhook

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func namesOf(all []*resourceapi.ResourceClaimTemplate) (names []string) {
	for _, t := range all {
		names = append(names, t.Namespace+"/"+t.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// What a pod asked for gives the templates that its review named, for each manifest.
func TestTemplatesOfAPodAreThoseOfItsReview(t *testing.T) {
	with := 0
	for _, s := range samples(t) {
		s.pod.Namespace = "team"
		c, err := s.rules(true).changeOf(s.pod)
		if err != nil {
			continue
		}
		with++
		got := s.rules(true).templatesOf(patched(s.pod, c))
		if !slices.Equal(namesOf(got), namesOf(c.templates)) {
			t.Errorf("%s: got %v, want %v", s.name, namesOf(got), namesOf(c.templates))
		}
	}
	if with < 12 {
		t.Errorf("%d manifests have templates", with)
	}
}

// claimed returns a pod of namespace team as the API server has it after a review.
func claimed(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	s := sampleOf(t, name)
	pod := s.pod.DeepCopy()
	pod.Namespace, pod.Name, pod.UID = "team", name, "uid-1"
	c, err := s.rules(true).changeOf(pod)
	if err != nil {
		t.Fatal(err)
	}
	return patched(pod, c)
}

// A webhook in between may add a container, and the API server asks again.
func TestTemplatesOfAPodThatWasReviewedTwice(t *testing.T) {
	rules, pod := sampleOf(t, "ours-memory").rules(true), claimed(t, "ours-memory")
	first := namesOf(rules.templatesOf(pod))
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "added",
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
			"gpuledger.dev/gpu-memory": resource.MustParse("9")}}})
	c, err := rules.changeOf(pod)
	if err != nil {
		t.Fatal(err)
	}
	want := append(namesOf(c.templates), first...)
	slices.Sort(want)
	if got := namesOf(rules.templatesOf(patched(pod, c))); len(want) != 2 || !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Who writes the annotation gets what he gets by asking, and only if the pod names it.
func TestTemplatesOfAnAnnotationByHand(t *testing.T) {
	rules := sampleOf(t, "ours-memory").rules(true)
	good := claimed(t, "ours-memory").Annotations[AskedFor]
	long := strings.Repeat("9", 100_000)
	for name, c := range map[string]struct {
		text string
		want int
	}{
		"as the webhook writes it":        {good, 1},
		"with other lines":                {"x; " + good + "; train: gpuledger.dev/gpu=9", 1},
		"nothing":                         {"", 0},
		"another amount":                  {strings.Replace(good, "=4", "=5", 1), 0},
		"another container":               {strings.ReplaceAll(good, "train: ", "other: "), 0},
		"no line":                         {"train, " + good, 0},
		"an amount without end":           {"train: gpuledger.dev/gpu-memory=" + long, 0},
		"a power of ten":                  {"train: gpuledger.dev/gpu-memory=1e2147483647", 0},
		"a small power of ten":            {"train: gpuledger.dev/gpu-memory=1e-2147483647", 0},
		"a name that is not configured":   {"train: example.com/gpu=1", 0},
		"more lines than there can be":    {strings.Repeat(good+"; ", maxLines) + good, 0},
		"names of two dialects":           {good + ", train: nvidia.com/gpu=1", 0},
		"nothing but marks between lines": {"; ; ", 0},
	} {
		pod := claimed(t, "ours-memory")
		pod.Annotations[AskedFor] = c.text
		if got := rules.templatesOf(pod); len(got) != c.want {
			t.Errorf("%s: got %v, want %d", name, namesOf(got), c.want)
		}
		pod.Spec.ResourceClaims = nil
		if got := rules.templatesOf(pod); len(got) > 0 {
			t.Errorf("%s, and the pod names none: got %v", name, namesOf(got))
		}
	}
}

// controlled is a controller that runs until the test ends.
type controlled struct {
	*testing.T
	*fake.Clientset
}

func control(t *testing.T, objects ...runtime.Object) controlled {
	t.Helper()
	c := controlled{t, fake.NewClientset(objects...)}
	controller := &Controller{Templates: Templates{Client: c, Now: time.Now},
		Rules: sampleOf(t, "ours-memory").rules(true), Log: slog.New(slog.DiscardHandler)}
	c.run(controller)
	return c
}

// run starts the controller and waits until it watches: unlike a real API, this one keeps nothing
// for a watch that comes later.
func (c controlled) run(controller *Controller) {
	watches := func() (n int) {
		for _, a := range c.Actions() {
			if a.Matches("watch", "pods") {
				n++
			}
		}
		return n
	}
	before := watches()
	begun := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() { _ = controller.Run(c.Context(), func() { close(begun) }) })
	c.Cleanup(ended.Wait)
	<-begun
	c.until("it watches", func() bool { return watches() > before })
}

func (c controlled) create(pod *corev1.Pod) {
	c.Helper()
	if _, err := c.CoreV1().Pods(pod.Namespace).Create(c.Context(), pod, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
}

func (c controlled) templates() (names []string) {
	c.Helper()
	all, err := c.ResourceV1().ResourceClaimTemplates("").List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	for _, one := range all.Items {
		names = append(names, one.Namespace+"/"+one.Name)
		if one.Labels[MadeBy] != Webhook || one.Annotations[Used] == "" {
			c.Errorf("%s has labels %v, annotations %v", one.Name, one.Labels, one.Annotations)
		}
	}
	slices.Sort(names)
	return names
}

func (c controlled) until(what string, is func() bool) {
	c.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("%s: not within a minute", what)
		}
	}
}

// The templates of a pod that was there before, and of one that comes, are made, each in the pod's
// namespace. A pod that only writes what it asked for gets none.
func TestTheControllerMakesWhatPodsName(t *testing.T) {
	before := claimed(t, "ours-memory")
	c := control(t, before)
	other := claimed(t, "two-containers")
	other.Namespace = "others"
	unnamed := claimed(t, "ours-product")
	unnamed.Spec.ResourceClaims = nil
	c.create(unnamed)
	c.create(other)
	rules := sampleOf(t, "ours-memory").rules(true)
	want := append(namesOf(rules.templatesOf(before)), namesOf(rules.templatesOf(other))...)
	slices.Sort(want)
	if len(want) != 3 {
		t.Fatalf("the manifests name %v", want)
	}
	c.until("the templates are made", func() bool { return len(c.templates()) >= len(want) })
	if got := c.templates(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Two replicas make a template once, and it is made again for a new pod after its end.
func TestTwoControllersAndADeletion(t *testing.T) {
	c := control(t)
	c.run(&Controller{Templates: Templates{Client: c, Now: time.Now},
		Rules: sampleOf(t, "ours-memory").rules(true), Log: slog.New(slog.DiscardHandler)})
	pod := claimed(t, "ours-memory")
	c.create(pod)
	c.until("the template is made", func() bool { return len(c.templates()) == 1 })
	name := *pod.Spec.ResourceClaims[0].ResourceClaimTemplateName
	if err := c.ResourceV1().ResourceClaimTemplates("team").Delete(t.Context(), name,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again := pod.DeepCopy()
	again.Name, again.UID = "again", "uid-2"
	c.create(again)
	c.until("the template is made again", func() bool { return len(c.templates()) == 1 })
}

// A template that cannot be made is tried again, and an event of the pod says why.
func TestATemplateThatCannotBeMade(t *testing.T) {
	c := control(t)
	var mu sync.Mutex
	refused := 0
	c.PrependReactor("create", "resourceclaimtemplates",
		func(clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			if refused++; refused <= 3 {
				return true, nil, errors.New("exceeded quota")
			}
			return false, nil, nil
		})
	c.create(claimed(t, "ours-memory"))
	c.until("the template is made", func() bool { return len(c.templates()) == 1 })
	c.until("there is an event", func() bool {
		all, err := c.CoreV1().Events("team").List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(all.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == "ours-memory" && e.Type == corev1.EventTypeWarning &&
				strings.Contains(e.Message, "exceeded quota")
		})
	})
}

// Pods of one namespace with many templates keep those of others from theirs for a moment only.
func TestEachNamespaceHasItsTurn(t *testing.T) {
	queue := newQueue()
	defer queue.ShutDown()
	var want []string
	for n := range 100 {
		key := fmt.Sprint("flood/", n)
		queue.Add(key)
		if want = append(want, key); n == 0 {
			want = append(want, "team/1", "other/1")
		} else if n == 1 {
			want = append(want, "team/2")
		}
	}
	for _, key := range []string{"team/1", "team/2", "other/1", "flood/3"} {
		queue.Add(key)
	}
	var got []string
	for range want {
		key, _ := queue.Get()
		got = append(got, key)
		queue.Done(key)
	}
	if !slices.Equal(got, want) || queue.Len() != 0 {
		t.Errorf("got %v and %d more, want %v", got, queue.Len(), want)
	}

	limiter := retries()
	for n := range 1000 {
		limiter.When(fmt.Sprint("flood/", n))
	}
	if wait := limiter.When("team/1"); wait > time.Second {
		t.Errorf("the first retry of another namespace waits for %s", wait)
	}
}

// The controller reads pods that wait, but none of namespaces that are left out, and keeps little.
func TestWhatTheControllerReads(t *testing.T) {
	c := &Controller{Exempt: []string{"gpuledger-system", "kube-system"}}
	if got, want := c.selector(), "spec.nodeName=,metadata.namespace!=gpuledger-system,"+
		"metadata.namespace!=kube-system"; got != want {
		t.Errorf("selects %q, want %q", got, want)
	}
	pod := claimed(t, "ours-memory")
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "a", Value: "b"}}
	plain := pod.DeepCopy()
	delete(plain.Annotations, AskedFor)
	for _, one := range []*corev1.Pod{pod, plain} {
		kept, err := c.trim(one)
		if text := fmt.Sprint(kept); err != nil || strings.Contains(text, "kubectl") ||
			strings.Contains(text, "EnvVar{Name") || kept.(*corev1.Pod).Name != one.Name {
			t.Errorf("kept %s, %v", text, err)
		}
	}
}
