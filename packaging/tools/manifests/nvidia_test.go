package main

import (
	"errors"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"sigs.k8s.io/yaml"
)

// cluster has objects that the chart looks up.
type cluster struct {
	objects  []runtime.Object
	versions chartutil.VersionSet // that its API server has
	lists    map[string]int       // how often the chart looked up a kind
}

func having(t *testing.T, documents ...string) *cluster {
	t.Helper()
	c := &cluster{lists: map[string]int{}}
	for _, text := range documents {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), u); err != nil {
			t.Fatal(err)
		}
		c.objects = append(c.objects, u)
	}
	return c
}

func (c *cluster) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool,
	error) {
	c.lists[kind]++
	if !c.versions.Has(apiVersion) { // as Helm's own provider, which asks the server for its kinds
		return nil, false, errors.New("unable to get apiresource from unstructured: " + apiVersion +
			", Kind=" + kind + ": the server could not find the requested resource")
	}
	kinds := map[schema.GroupVersionResource]string{
		{Version: "v1", Resource: "nodes"}:                                    "NodeList",
		{Group: "resource.k8s.io", Version: "v1", Resource: "resourceslices"}: "ResourceSliceList",
		{Group: "apps", Version: "v1", Resource: "daemonsets"}:                "DaemonSetList"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, c.objects...)
	version, err := schema.ParseGroupVersion(apiVersion)
	resource, _ := meta.UnsafeGuessKindToResource(version.WithKind(kind))
	return client.Resource(resource), kind == "DaemonSet", err
}

func aSlice(driver, node, devices string) string {
	return "{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: " + driver + "-" + node +
		"}, spec: {driver: " + driver + ", nodeName: " + node + ", devices: " + devices + "}}"
}

func aNode(name, labels, allocatable string) string {
	return "{apiVersion: v1, kind: Node, metadata: {name: " + name + ", labels: " + labels +
		"}, status: {allocatable: " + allocatable + "}}"
}

// The chart does not enforce on nodes whose GPUs NVIDIA's plugin hands out, too.
func TestTwoPluginsOnOneNode(t *testing.T) {
	const shared, enforce = "{gpuledger.dev/node: shared}", "policy: {mode: enforce}"
	all := having(t, aNode("a", shared, `{nvidia.com/gpu: "8", cpu: "4"}`), aNode("b", shared,
		`{nvidia.com/gpu: "0"}`),
		aNode("c", "{}", `{nvidia.com/gpu: "8"}`), aNode("d", shared, `{cpu: "4"}`),
		aNode("e", shared, `{cpu: "4"}`), aSlice("gpu.nvidia.com", "e", "[{name: gpu-0}]"))
	_, err := renderedWith(t, all, namespace, "v1.36.2", enforce)
	if err == nil || !strings.Contains(err.Error(),
		"refused to enforce: NVIDIA's device plugin or DRA driver hands out GPUs of these nodes, too, "+
			"and its pods would be refused there: a (nvidia.com/gpu); e (gpu.nvidia.com). ") {
		t.Errorf("got %v", err)
	}
	for _, values := range []string{"{}", "{policy: {mode: enforce}, nvidia: {allowBoth: true}}",
		"{policy: {mode: enforce}, nodeSelector: {other: label}}"} {
		if _, err := renderedWith(t, all, namespace, "v1.36.2", values); err != nil {
			t.Errorf("%s: %v", values, err)
		}
	}
	for values, refused := range map[string]bool{
		"{kinds: [{name: old, nodeSelector: {kind: old}, policy: {mode: enforce}}]}":                false,
		"{kinds: [{name: a, nodeSelector: {gpuledger.dev/node: shared}, policy: {mode: enforce}}]}": true,
		"{policy: {mode: enforce}, kinds: [{name: a, nodeSelector: {gpuledger.dev/node: shared}, " +
			"policy: {mode: report}}]}": false,
	} {
		if _, err := renderedWith(t, all, namespace, "v1.36.2", values); (err != nil) != refused {
			t.Errorf("%s: %v", values, err)
		}
	}
	others := having(t, aNode("b", shared, `{nvidia.com/gpu: "0"}`), aNode("c", "{}",
		`{nvidia.com/gpu: "8"}`), aSlice("gpu.nvidia.com", "c", "[{name: gpu-0}]"),
		aSlice("gpu.nvidia.com", "b", "[]"), aSlice("gpuledger.dev", "b", "[{name: gpu-0}]"))
	if _, err := renderedWith(t, others, namespace, "v1.36.2", enforce); err != nil {
		t.Error(err)
	}
}

// Kubernetes 1.30 to 1.33 have no resource.k8s.io/v1, and Helm fails to look up what a server does
// not have. Where there are slices they are read once, and only for nodes that enforce.
func TestSlicesAreReadWhereThereAreAny(t *testing.T) {
	const shared, enforce = "{gpuledger.dev/node: shared}", "policy: {mode: enforce}"
	for version, lists := range map[string]int{"v1.30.14": 0, "v1.33.5": 0, "v1.34.2": 1, "v1.36.2": 1} {
		for values, want := range map[string]int{enforce: lists, "policy: {mode: report}": 0} {
			c := having(t, aNode("a", shared, "{}"), aNode("b", shared, "{}"))
			_, err := renderedWith(t, c, namespace, version, "{agent: device-plugin, "+values+"}")
			if err != nil || c.lists["ResourceSlice"] != want {
				t.Errorf("%s, %s: %v; it reads the slices %d times, want %d", version, values, err,
					c.lists["ResourceSlice"], want)
			}
		}
	}
	c := having(t, aNode("a", shared, `{nvidia.com/gpu: "8"}`))
	if _, err := renderedWith(t, c, namespace, "v1.30.14", enforce); err == nil ||
		!strings.Contains(err.Error(), "a (nvidia.com/gpu). ") {
		t.Errorf("NVIDIA's plugin on 1.30: got %v", err)
	}
}

// The names that gpuledger's own plugin gives to the kubelet are not NVIDIA's.
func TestOurOwnNameIsNotTheirs(t *testing.T) {
	const ours = "{agent: device-plugin, policy: {mode: enforce}, scheduler: {enabled: true, " +
		"resources: [{name: nvidia.com/gpu}], shared: [nvidia.com/gpu.shared]}}"
	const shared = "{gpuledger.dev/node: shared}"
	if _, err := renderedWith(t, having(t, aNode("a", shared, `{nvidia.com/gpu: "8", `+
		`nvidia.com/gpu.shared: "4"}`)), namespace, "v1.36.2", ours); err != nil {
		t.Error(err)
	}
	if _, err := renderedWith(t, having(t, aNode("a", shared, `{nvidia.com/mig-1g.10gb: "1"}`)), namespace,
		"v1.36.2", ours); err == nil {
		t.Error("it enforces beside NVIDIA's plugin")
	}
}

// An upgrade does not take away what gives the nodes back.
func TestASetUpNodeIsNotForgotten(t *testing.T) {
	set := func(containers string) *cluster {
		return having(t, "{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: gpuledger-setup-h100, "+
			"namespace: "+namespace+"}, spec: {template: {spec: {initContainers: "+containers+"}}}}")
	}
	for _, values := range []string{"{setup: {install: false}}", "{setup: {enabled: false}}"} {
		_, err := renderedWith(t, set("[{name: install}]"), namespace, "v1.36.2", values)
		if err == nil || !strings.Contains(err.Error(),
			"refused: DaemonSet gpuledger-setup-h100 has installed gpuledger on nodes") {
			t.Errorf("%s: %v", values, err)
		}
		for _, c := range []*cluster{set("[]"), having(t)} {
			if _, err := renderedWith(t, c, namespace, "v1.36.2", values); err != nil {
				t.Errorf("%s: %v", values, err)
			}
		}
	}
}

// An agent is not changed by an upgrade of the cluster, under the pods that it serves.
func TestTheAgentStays(t *testing.T) {
	for have, want := range map[string]string{"gpuledger-dra": "gpuledger-dra",
		"gpuledger-device-plugin": "gpuledger-device-plugin"} {
		c := having(t, "{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: "+have+", namespace: "+
			""+namespace+"}}")
		for _, version := range []string{"v1.36.2", "v1.37.0"} {
			objects, err := renderedWith(t, c, namespace, version, "{}")
			if err != nil {
				t.Fatal(err)
			}
			if _, found := byName(objects)["DaemonSet/"+want]; !found {
				t.Errorf("%s: %s becomes another agent", version, have)
			}
		}
	}
}

func TestTheRuntimeClassOfNVIDIA(t *testing.T) {
	p := mustRender(t, namespace, "v1.36.2",
		"nvidia: {policy: true, namespaces: [gpu-operator, "+
			"monitoring]}")["ValidatingAdmissionPolicy/runtimeclasses.gpuledger.dev"].
		value.(*admissionregistration.ValidatingAdmissionPolicy).Spec
	for pod, want := range map[string]string{"team/{}": "", "team/{runtimeClassName: gpuledger}": "",
		"gpu-operator/{runtimeClassName: nvidia}": "",
		"team/{runtimeClassName: nvidia-cdi}": "runtimeClassName nvidia-cdi is only " +
			"for pods in gpu-operator, monitoring: request GPUs from gpuledger instead"} {
		namespace, spec, _ := strings.Cut(pod, "/")
		var object any
		if err := yaml.Unmarshal([]byte(spec), &object); err != nil {
			t.Fatal(err)
		}
		given := map[string]any{"object": map[string]any{"spec": object},
			"request": map[string]any{"namespace": namespace}}
		said := ""
		if evaluated(t, p.MatchConditions[0].Expression, given) == true &&
			evaluated(t, p.Validations[0].Expression, given) == false {
			said = evaluated(t, p.Validations[0].MessageExpression, given).(string)
		}
		if said != want {
			t.Errorf("%s: got %q, want %q", pod, said, want)
		}
	}
	if mustRender(t, namespace, "v1.36.2",
		"{}")["ValidatingAdmissionPolicy/runtimeclasses.gpuledger.dev"].value != nil {
		t.Error("it is there without being asked for")
	}
	if _, err := rendered(t, namespace, "v1.29.9", "nvidia: {policy: true}"); err == nil ||
		!strings.Contains(err.Error(), "nvidia.policy needs Kubernetes 1.30 or later") {
		t.Errorf("a cluster whose API has no admission policies: got %v", err)
	}
}
