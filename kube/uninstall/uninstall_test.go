package uninstall

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuledger/gpuledger/kube/nodestate"
)

const ours = "gpuledger-system"

func set(name string, pod corev1.PodSpec) *appsv1.DaemonSet {
	pod.NodeSelector = map[string]string{"gpuledger.dev/node": "shared"}
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ours},
		Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: pod}}}
}

func setup(name string) *appsv1.DaemonSet {
	return set(name, corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "install", Image: "i",
			Args: []string{"install", "--engine=crio", "--as-default", "--cluster=/cluster/cluster.toml"}}},
		Containers: []corev1.Container{{Name: "config", Image: "i", Args: []string{"config", "--cluster=x"},
			ReadinessProbe: &corev1.Probe{}}}})
}

func config(annotations map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: configMap, Namespace: ours,
		Annotations: annotations}}
}

func claim(name, driver string, pods ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team"}}
	c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Driver: driver}}}}
	for _, pod := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod})
	}
	return c
}

func node(name string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
}

// podOf is a pod of a DaemonSet that is not ready.
func podOf(name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + node, Namespace: ours,
		Labels: map[string]string{"app.kubernetes.io/name": name}}, Spec: corev1.PodSpec{NodeName: node}}
}

// fakeCluster is a fake API whose DaemonSets have one node, at once where node is true.
type fakeCluster struct {
	*testing.T
	client *fake.Clientset
	said   []string
}

func newCluster(t *testing.T, node bool, objects ...runtime.Object) *fakeCluster {
	c := &fakeCluster{T: t, client: fake.NewClientset(objects...)}
	c.client.PrependReactor("get", "daemonsets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		name := a.(clienttesting.GetAction).GetName()
		o, err := c.client.Tracker().Get(a.GetResource(), ours, name)
		if err != nil {
			return true, nil, err
		}
		s := o.(*appsv1.DaemonSet).DeepCopy()
		if s.Spec.Template.Spec.NodeSelector["gpuledger.dev/node"] == nowhere {
			s.Status.NumberMisscheduled = c.remaining(name)
		} else {
			s.Status.DesiredNumberScheduled, s.Status.CurrentNumberScheduled = 1, 1
			if node {
				s.Status.UpdatedNumberScheduled, s.Status.NumberAvailable = 1, 1
			}
		}
		return true, s, nil
	})
	return c
}

func (c *fakeCluster) run(setups ...string) error {
	return c.runFor(300*time.Millisecond, setups...)
}

// runFor runs until its end, or for some time of a clock that stands still while the run works.
func (c *fakeCluster) runFor(most time.Duration, setups ...string) (err error) {
	synctest.Test(c.T, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), most)
		defer stop()
		err = Uninstall{Client: c.client, Namespace: ours, Setups: setups, Every: 10 * time.Millisecond,
			Say: func(format string, args ...any) { c.said = append(c.said, fmt.Sprintf(format, args...)) },
		}.Run(ctx)
	})
	return err
}

// remaining counts the pods of a DaemonSet. A call of the client would wait for its own lock here.
func (c *fakeCluster) remaining(name string) (n int32) {
	list, err := c.client.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"),
		corev1.SchemeGroupVersion.WithKind("Pod"), ours)
	if err != nil {
		c.Fatal(err)
	}
	for _, pod := range list.(*corev1.PodList).Items {
		if pod.Labels["app.kubernetes.io/name"] == name {
			n++
		}
	}
	return n
}

// failsAfter makes the API answer calls of a verb with an error, so many times, once the
// DaemonSet has been changed.
func (c *fakeCluster) failsAfter(name, verb string, times int, err error) {
	changed := false
	c.client.PrependReactor("*", "daemonsets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if p, is := a.(clienttesting.PatchAction); is && p.GetName() == name && !changed {
			changed = true
			return false, nil, nil
		}
		if !changed || verb != "*" && a.GetVerb() != verb || times == 0 {
			return false, nil, nil
		}
		times--
		return true, nil, err
	})
}

// killedAfter runs the Job, and lets it change nothing more once it has changed the agent.
func (c *fakeCluster) killedAfter(agent string) {
	c.Helper()
	c.failsAfter(agent, "*", -1, errRefused)
	_ = c.run("gpuledger-setup")
	c.client.ReactionChain = c.client.ReactionChain[1:]
	if got := c.set(agent).Spec.Template.Spec.NodeSelector["gpuledger.dev/node"]; got != nowhere {
		c.Fatalf("the agent is on nodes with %q", got)
	}
}

// claimComes makes a claim come once an agent leaves.
func (c *fakeCluster) claimComes() {
	c.client.PrependReactor("patch", "daemonsets", func(clienttesting.Action) (bool, runtime.Object, error) {
		_ = c.client.Tracker().Add(claim("late", "gpuledger.dev", "a"))
		return false, nil, nil
	})
}

// goesDown makes a node not ready once a DaemonSet is changed.
func (c *fakeCluster) goesDown(name string) {
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	c.client.PrependReactor("patch", "daemonsets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return false, nil, c.client.Tracker().Update(nodes, node(name, corev1.ConditionUnknown), "")
	})
}

func (c *fakeCluster) set(name string) *appsv1.DaemonSet {
	c.Helper()
	s, err := c.client.AppsV1().DaemonSets(ours).Get(c.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return s
}

// The agents go first, and the nodes are given back then.
func TestNodesAreGivenBack(t *testing.T) {
	c := newCluster(t, true, config(nil), set("gpuledger-dra", corev1.PodSpec{}), setup("gpuledger-setup"),
		setup("gpuledger-setup-h100"), claim("other", "gpu.nvidia.com", "a"))
	if err := c.run("gpuledger-setup", "gpuledger-setup-h100"); err != nil {
		t.Fatal(err)
	}
	if got := c.set("gpuledger-dra").Spec.Template.Spec.NodeSelector; !maps.Equal(got,
		map[string]string{"gpuledger.dev/node": nowhere}) {
		t.Errorf("the agent is on nodes with %v", got)
	}
	for _, name := range []string{"gpuledger-setup", "gpuledger-setup-h100"} {
		pod := c.set(name).Spec.Template.Spec
		if !slices.Equal(pod.InitContainers[0].Args, []string{"remove", "--engine=crio"}) ||
			!slices.Equal(pod.Containers[0].Args, []string{"leave"}) ||
			pod.Containers[0].ReadinessProbe != nil ||
			pod.Containers[0].Image != "i" || pod.NodeSelector["gpuledger.dev/node"] != "shared" {
			t.Errorf("%s: %+v", name, pod)
		}
	}
	if err := c.run("gpuledger-setup", "gpuledger-setup-h100"); err != nil {
		t.Errorf("again: %v", err)
	}
}

// No scheduler may place a pod by what a node published once. Without the device plugin, whose
// account may not do that, nothing is removed.
func TestWhatNodesPublishedIsRemoved(t *testing.T) {
	published := node("a", corev1.ConditionTrue)
	published.Annotations = map[string]string{nodestate.Annotation: "{}", "other": "stays"}
	all := []runtime.Object{config(nil), setup("gpuledger-setup"),
		published, node("b", corev1.ConditionTrue)}
	c := newCluster(t, true, append(all, set("gpuledger-device-plugin", corev1.PodSpec{}))...)
	if err := c.run("gpuledger-setup"); err != nil {
		t.Fatal(err)
	}
	after, err := c.client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || !maps.Equal(after.Annotations, map[string]string{"other": "stays"}) {
		t.Errorf("the node has %v, %v", after.Annotations, err)
	}
	for _, a := range c.client.Actions() {
		p, is := a.(clienttesting.PatchAction)
		if is && p.GetResource().Resource == "nodes" && p.GetName() != "a" {
			t.Errorf("node %s was changed", p.GetName())
		}
	}
	c = newCluster(t, true, append(all, set("gpuledger-dra", corev1.PodSpec{}))...)
	if err := c.run("gpuledger-setup"); err != nil {
		t.Fatal(err)
	}
	for _, a := range c.client.Actions() {
		if a.GetResource().Resource == "nodes" && a.GetVerb() != "list" {
			t.Errorf("with the DRA driver: %v", a)
		}
	}
}

// Where only the configuration is set, there is nothing installed to remove.
func TestNodesWithPackagesKeepThem(t *testing.T) {
	only := setup("gpuledger-setup")
	only.Spec.Template.Spec.InitContainers = nil
	c := newCluster(t, true, config(nil), only)
	if err := c.run("gpuledger-setup"); err != nil {
		t.Fatal(err)
	}
	if pod := c.set("gpuledger-setup").Spec.Template.Spec; len(pod.InitContainers) > 0 ||
		!slices.Equal(pod.Containers[0].Args, []string{"leave"}) {
		t.Errorf("got %+v", pod)
	}
}

// Nothing changes while a claim or a pod has GPUs, unless an administrator forces it.
func TestRefusedWhilePodsHaveGPUs(t *testing.T) {
	units := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "units", Namespace: "team"},
		Spec: corev1.PodSpec{NodeName: "n",
			Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"gpuledger.dev/gpu-memory": resource.MustParse("4")}}}}}}
	placed := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "placed", Namespace: "team",
		Annotations: map[string]string{"gpuledger.dev/gpus.train": "GPU-0"}},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "train"}}}}
	for name, c := range map[string]struct {
		agent string
		user  runtime.Object
		want  string
	}{
		"a claim": {"gpuledger-dra", claim("share", "gpuledger.dev", "a", "b"),
			"claim team/share of a and b"},
		"units":                {"gpuledger-device-plugin", units, "pod team/units"},
		"what was placed here": {"gpuledger-device-plugin", placed, "pod team/placed"},
	} {
		t.Run(name, func(t *testing.T) {
			agent := c.agent
			k := newCluster(t, true, config(nil), set(agent, corev1.PodSpec{}), setup("gpuledger-setup"),
				c.user)
			err := k.run("gpuledger-setup")
			if err == nil || !strings.HasPrefix(err.Error(),
				"refused: these have GPUs, which only the agent can "+
					"give back: "+c.want+". ") || !strings.Contains(err.Error(),
				"annotate configmap/gpuledger-config "+
					"gpuledger.dev/uninstall=force") {
				t.Errorf("got %v", err)
			}
			for _, a := range k.client.Actions() {
				if a.GetVerb() == "patch" {
					t.Errorf("it changes %v", a)
				}
			}
			k = newCluster(t, true, config(map[string]string{force: "force"}), set(agent, corev1.PodSpec{}),
				setup("gpuledger-setup"), c.user)
			if err := k.run("gpuledger-setup"); err != nil || !strings.Contains(k.said[0], c.want) ||
				k.set("gpuledger-setup").Spec.Template.Spec.InitContainers[0].Args[0] != "remove" {
				t.Errorf("forced: %v, %q", err, k.said)
			}
		})
	}
}

// A pod that has whole GPUs by a claim is named once, by its claim.
func TestAPodWithAClaimForItsResources(t *testing.T) {
	pod := func(name string, by *corev1.PodExtendedResourceClaimStatus) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team"},
			Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "main",
				Resources: corev1.ResourceRequirements{
					Limits: corev1.ResourceList{"gpuledger.dev/gpu": resource.MustParse("1")}}}}},
			Status: corev1.PodStatus{ExtendedResourceClaimStatus: by}}
	}
	k := newCluster(t, true, config(nil), set("gpuledger-device-plugin", corev1.PodSpec{}),
		set("gpuledger-dra", corev1.PodSpec{}), setup("gpuledger-setup"),
		pod("whole", nil), claim("a-extended-resources-x", "gpuledger.dev", "a"),
		pod("a", &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "a-extended-resources-x",
			RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "main",
				ResourceName: "gpuledger.dev/gpu", RequestName: "container-0-request-0"}}}))
	if err := k.run("gpuledger-setup"); err == nil || !strings.Contains(err.Error(),
		"give back: claim team/a-extended-resources-x of a, pod team/whole. ") {
		t.Errorf("got %v", err)
	}
}

// A claim that came while the agent left brings the agent back.
func TestAClaimThatComesMeanwhile(t *testing.T) {
	c := newCluster(t, true, config(nil), set("gpuledger-dra", corev1.PodSpec{}), setup("gpuledger-setup"))
	c.claimComes()
	if err := c.run("gpuledger-setup"); err == nil || !strings.Contains(err.Error(), "claim team/late of a") {
		t.Errorf("got %v", err)
	}
	if got := c.set("gpuledger-dra").Spec.Template.Spec.NodeSelector["gpuledger.dev/node"]; got != "shared" {
		t.Errorf("the agent is on nodes with %q", got)
	}
	if c.set("gpuledger-setup").Spec.Template.Spec.InitContainers[0].Args[0] != "install" {
		t.Error("the nodes are given back")
	}
}

// What the nodes have published goes once no agent publishes it again, also when it is forced.
func TestForcedWaitsForTheAgents(t *testing.T) {
	for name, stays := range map[string]bool{"they go": false, "one stays": true} {
		t.Run(name, func(t *testing.T) {
			n := node("a", corev1.ConditionTrue)
			n.Annotations = map[string]string{nodestate.Annotation: "{}"}
			pod := podOf(devicePlugin, "a")
			c := newCluster(t, true, config(map[string]string{force: "force"}), n, pod,
				set(devicePlugin, corev1.PodSpec{}), setup("gpuledger-setup"))
			looks := 0
			publishes := func(a clienttesting.Action) (bool, runtime.Object, error) {
				if a.(clienttesting.GetAction).GetName() == devicePlugin {
					looks++
				}
				core, tracker := corev1.SchemeGroupVersion, c.client.Tracker()
				if looks == 4 && !stays {
					_ = tracker.Delete(core.WithResource("pods"), ours, pod.Name)
				}
				if c.remaining(devicePlugin) > 0 {
					_ = tracker.Update(core.WithResource("nodes"), n.DeepCopy(), "")
				}
				return false, nil, nil
			}
			c.client.PrependReactor("get", "daemonsets", publishes)
			most := 10 * time.Second
			if stays {
				most = time.Second
			}
			if err := c.runFor(most, "gpuledger-setup"); err != nil {
				t.Error(err)
			}
			after, err := c.client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
			_, published := after.Annotations[nodestate.Annotation]
			if err != nil || published != stays {
				t.Errorf("its annotation is there: %v (%v)", published, err)
			}
			if said := "forced: still on their nodes: gpuledger-device-plugin-a on node a"; stays !=
				slices.Contains(c.said, said) {
				t.Errorf("it says %q", c.said)
			}
		})
	}
}

// A node that does not come is named.
func TestANodeThatDoesNotCome(t *testing.T) {
	pod := podOf("gpuledger-setup", "node-7")
	c := newCluster(t, false, config(nil), setup("gpuledger-setup"), pod)
	if err := c.run("gpuledger-setup"); err == nil || !strings.Contains(err.Error(),
		"cannot wait any longer for the nodes (gpuledger-setup): gpuledger-setup-node-7 on node node-7") {
		t.Errorf("got %v", err)
	}
	c = newCluster(t, false, config(map[string]string{force: "force"}), setup("gpuledger-setup"), pod)
	if err := c.run("gpuledger-setup"); err != nil ||
		!slices.Contains(c.said, "forced: not given back: gpuledger-setup-node-7 on node node-7") {
		t.Errorf("forced: %v, %q", err, c.said)
	}
}

var (
	errRefused   = errors.New("connection refused")
	errForbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "daemonsets"}, "", nil)
)

// An API server that restarts, as when its node is given back, does not end the uninstall.
func TestTheAPIIsAwayForAWhile(t *testing.T) {
	for name, changed := range map[string]string{"while the agents go": "gpuledger-dra",
		"while the nodes are given back": "gpuledger-setup"} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, true, config(nil), set("gpuledger-dra", corev1.PodSpec{}),
				setup("gpuledger-setup"))
			c.failsAfter(changed, "get", 3, errRefused)
			if err := c.run("gpuledger-setup"); err != nil {
				t.Error(err)
			}
		})
	}
}

// What the API has last said is reported. It is no node that is missing, so force does not hide it.
func TestTheAPIStaysAway(t *testing.T) {
	for name, c := range map[string]struct {
		annotations map[string]string
		err         error
		calls       int // after the change
	}{
		"at the deadline": {nil, errRefused, -1},
		"forced":          {map[string]string{force: "force"}, errRefused, -1},
		"forbidden":       {map[string]string{force: "force"}, errForbidden, 1},
	} {
		t.Run(name, func(t *testing.T) {
			k := newCluster(t, true, config(c.annotations), setup("gpuledger-setup"))
			k.failsAfter("gpuledger-setup", "get", c.calls, c.err)
			if err := k.run("gpuledger-setup"); !errors.Is(err, c.err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// The agents come back although the API does not work at once.
func TestTheAgentsComeBackLater(t *testing.T) {
	c := newCluster(t, true, config(nil), set("gpuledger-dra", corev1.PodSpec{}), setup("gpuledger-setup"))
	c.failsAfter("gpuledger-dra", "patch", 3, errRefused)
	c.claimComes()
	if err := c.run("gpuledger-setup"); err == nil || errors.Is(err, errRefused) {
		t.Errorf("got %v", err)
	}
	if got := c.set("gpuledger-dra").Spec.Template.Spec.NodeSelector["gpuledger.dev/node"]; got != "shared" {
		t.Errorf("the agent is on nodes with %q", got)
	}
	c = newCluster(t, true, config(nil), set("gpuledger-dra", corev1.PodSpec{}), setup("gpuledger-setup"))
	c.failsAfter("gpuledger-dra", "*", -1, errRefused)
	if err := c.run("gpuledger-setup"); !errors.Is(err, errRefused) ||
		!strings.Contains(err.Error(), "cannot bring the agents back to their nodes") {
		t.Errorf("for ever: %v", err)
	}
}

// An uninstall that was interrupted has taken the agent from its nodes. The next one still knows
// them, and brings the agent back whenever it finds that a pod has GPUs.
func TestTheAgentsNodesOutliveTheJob(t *testing.T) {
	for name, comes := range map[string]func(*fakeCluster){
		"a claim comes in the next run": (*fakeCluster).claimComes,
		"a claim came before it": func(c *fakeCluster) {
			_ = c.client.Tracker().Add(claim("late", "gpuledger.dev", "a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, true, config(nil), set("gpuledger-dra", corev1.PodSpec{}),
				setup("gpuledger-setup"))
			c.killedAfter("gpuledger-dra")
			comes(c)
			if err := c.run("gpuledger-setup"); err == nil ||
				!strings.Contains(err.Error(), "claim team/late of a") {
				t.Errorf("it does not refuse: %v", err)
			}
			after := c.set("gpuledger-dra")
			if got := after.Spec.Template.Spec.NodeSelector; got["gpuledger.dev/node"] != "shared" ||
				len(after.Annotations) > 0 {
				t.Errorf("the agent is on nodes with %v, %v", got, after.Annotations)
			}
		})
	}
}

// A forced run has begun to give the nodes back. The next one is not forced and refuses. The agents
// stay away from nodes whose engine no longer calls gpuledger.
func TestTheAgentsStayAwayFromNodesThatLeave(t *testing.T) {
	c := newCluster(t, true, config(map[string]string{force: "force"}),
		set("gpuledger-dra", corev1.PodSpec{}), setup("gpuledger-setup"),
		claim("share", "gpuledger.dev", "a"))
	if err := c.run("gpuledger-setup"); err != nil {
		t.Fatal(err)
	}
	if err := c.run("gpuledger-setup"); err == nil || !strings.Contains(err.Error(), "refused: ") {
		t.Errorf("the second run: %v", err)
	}
	if got := c.set("gpuledger-dra").Spec.Template.Spec.NodeSelector["gpuledger.dev/node"]; got != nowhere {
		t.Errorf("the agent is on nodes with %q", got)
	}
}

// The annotation stays until a run succeeds. The administrator learns that it does.
func TestTheNextRunIsForcedToo(t *testing.T) {
	c := newCluster(t, true, config(map[string]string{force: "force"}),
		set("gpuledger-dra", corev1.PodSpec{}), setup("gpuledger-setup"),
		claim("share", "gpuledger.dev", "a"))
	c.killedAfter("gpuledger-dra")
	if said := "the next uninstall is forced, too. To take that back: kubectl -n gpuledger-system annotate " +
		"configmap/gpuledger-config gpuledger.dev/uninstall-"; !slices.Contains(c.said, said) {
		t.Errorf("it says %q", c.said)
	}
	if err := c.run("gpuledger-setup"); err != nil {
		t.Errorf("again: %v", err)
	}
	after, err := c.client.CoreV1().ConfigMaps(ours).Get(t.Context(), configMap, metav1.GetOptions{})
	if err != nil || len(after.Annotations) > 0 {
		t.Errorf("a later uninstall is forced, too: %v, %v", after.Annotations, err)
	}
}

// A selector that no node has is never taken for the one that the agent had.
func TestTheAgentsNodesAreNotKnown(t *testing.T) {
	agent := set("gpuledger-dra", corev1.PodSpec{})
	agent.Spec.Template.Spec.NodeSelector["gpuledger.dev/node"] = nowhere
	c := newCluster(t, true, config(nil), agent, setup("gpuledger-setup"))
	c.claimComes()
	if err := c.run("gpuledger-setup"); err == nil || !strings.Contains(err.Error(),
		"cannot bring gpuledger-dra back to its nodes") || !strings.Contains(err.Error(), "`helm rollback`") {
		t.Errorf("got %v", err)
	}
}

// No kubelet ends an agent's pod on a node that is down. The other nodes are given back.
func TestAnAgentsPodThatNoKubeletEnds(t *testing.T) {
	for name, c := range map[string]struct {
		nodes []runtime.Object
		want  string
	}{
		"its node is down": {[]runtime.Object{node("a", corev1.ConditionUnknown)}, ""},
		"its node is gone": {nil, ""},
		"its node is ready": {[]runtime.Object{node("a", corev1.ConditionTrue)},
			"cannot wait any longer for the agents (gpuledger-dra): gpuledger-dra-a on node a. "},
	} {
		t.Run(name, func(t *testing.T) {
			k := newCluster(t, true, append(c.nodes, config(nil), set("gpuledger-dra", corev1.PodSpec{}),
				setup("gpuledger-setup"), podOf("gpuledger-dra", "a"))...)
			err := k.run("gpuledger-setup")
			if c.want == "" && (err != nil || !slices.Contains(k.said,
				"these nodes are not ready, and their agents' pods stay: a")) {
				t.Errorf("got %v, %q", err, k.said)
			}
			if c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
				t.Errorf("got %v", err)
			}
			stopped := k.set("gpuledger-dra").Spec.Template.Spec.NodeSelector["gpuledger.dev/node"] == nowhere
			if stopped != (c.want == "") {
				t.Errorf("the agent is stopped: %v", stopped)
			}
		})
	}
}

// As many nodes are down as may be unavailable. The others are given back all the same, also in a
// second run, and a forced end names all nodes that are not.
func TestNodesThatAreDownDoNotHoldBackTheOthers(t *testing.T) {
	some := intstr.FromString("10%")
	for name, down := range map[string]int{"before": 0, "meanwhile": 1} {
		t.Run(name, func(t *testing.T) {
			only := setup("gpuledger-setup")
			only.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &some}
			old := podOf("gpuledger-setup", "old") // ready, with the template before the removal
			old.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady,
				Status: corev1.ConditionTrue}}
			c := newCluster(t, false, config(map[string]string{force: "force"}), only, old,
				podOf("gpuledger-setup", "down"), podOf("gpuledger-setup", ""),
				node("old", corev1.ConditionTrue))
			if down > 0 {
				_ = c.client.Tracker().Add(node("down", corev1.ConditionTrue))
				c.goesDown("down")
			}
			for range 2 {
				_ = c.run("gpuledger-setup")
				r := c.set("gpuledger-setup").Spec.UpdateStrategy.RollingUpdate
				if got := r.MaxUnavailable.String(); got != "2" {
					t.Errorf("%s may be unavailable", got)
				}
			}
			if !slices.Contains(c.said, "forced: not given back: gpuledger-setup- on no node yet, "+
				"gpuledger-setup-down on node down, gpuledger-setup-old on node old") {
				t.Errorf("got %q", c.said)
			}
			if !slices.ContainsFunc(c.said, func(line string) bool {
				return strings.Contains(line, "Helm deletes the policy allocations.gpuledger.dev")
			}) {
				t.Errorf("it does not say that annotations are trusted: %q", c.said)
			}
			after, err := c.client.CoreV1().ConfigMaps(ours).Get(t.Context(), configMap, metav1.GetOptions{})
			if err != nil || len(after.Annotations) > 0 {
				t.Errorf("the next uninstall is forced, too: %v, %v", after.Annotations, err)
			}
		})
	}
}
