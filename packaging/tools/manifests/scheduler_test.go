package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
)

// schedulerFiles are what the chart writes for the scheduler: the names of resources, and the
// configuration of kube-scheduler as that reads it.
func schedulerFiles(t *testing.T, values string) (names string, c *config.KubeSchedulerConfiguration) {
	t.Helper()
	all, err := rendered(t, namespace, "v1.30.4", values)
	if err != nil {
		t.Fatal(err)
	}
	m, is := byName(all)["ConfigMap/gpuledger-scheduler"].value.(*core.ConfigMap)
	if !is {
		t.Fatal("there is no ConfigMap")
	}
	return m.Data["resources.toml"], schedulerConfig(t, m.Data["kube-scheduler.yaml"])
}

// schedulerConfig reads a configuration as kube-scheduler does.
func schedulerConfig(t *testing.T, text string) *config.KubeSchedulerConfiguration {
	t.Helper()
	object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(text), nil, nil)
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	c := object.(*config.KubeSchedulerConfiguration)
	if err := validation.ValidateKubeSchedulerConfiguration(c); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return c
}

func managed(c *config.KubeSchedulerConfiguration) (names []string) {
	for _, r := range c.Extenders[0].ManagedResources {
		if r.IgnoredByScheduler {
			names = append(names, r.Name)
		}
	}
	return names
}

func TestKubeSchedulerReadsWhatTheChartWrites(t *testing.T) {
	names, c := schedulerFiles(t, `{agent: device-plugin, scheduler: {enabled: true, names: [gpuledger-scheduler, kai-scheduler],
		shared: [nvidia.com/gpu.shared], resources: [{name: aliyun.com/gpu-mem, unit: 1MiB}, {name: example.com/vram, like: nvidia.com/gpumem, mode: mps}]}}`)
	if want := []string{"aliyun.com/gpu-mem", "example.com/vram",
		"nvidia.com/gpu.shared"}; !slices.Equal(managed(c), want) {
		t.Errorf("the extender is asked for %v, want %v", managed(c), want)
	}
	if len(c.Profiles) != 2 || c.Profiles[1].SchedulerName != "kai-scheduler" ||
		!c.LeaderElection.LeaderElect || c.LeaderElection.ResourceNamespace != namespace ||
		!c.Extenders[0].NodeCacheCapable || c.Extenders[0].Ignorable {
		t.Errorf("got %+v", c)
	}
	for _, want := range []string{`name = "aliyun.com/gpu-mem"`, `unit = "1MiB"`,
		`like = "nvidia.com/gpumem"`, `mode = "mps"`} {
		if !strings.Contains(names, want) {
			t.Errorf("the names have no %s:\n%s", want, names)
		}
	}
}

// Pods ask for the shares that the file of NVIDIA's plugin makes, and the extender is asked about
// them.
func TestTheExtenderIsAskedForTheSharesOfNVIDIAsFile(t *testing.T) {
	text, err := os.ReadFile("../../../docs/kubernetes-dialects.md")
	if err != nil {
		t.Fatal(err)
	}
	_, file, _ := strings.Cut(string(text), "nvidia_device_plugin = '''\n")
	file, _, found := strings.Cut(file, "'''")
	if !found {
		t.Fatal("the documentation has no file")
	}
	of := func(old, with string) string { return strings.Replace(file, old, with, 1) }
	const renamed = "gpuledger.dev/gpu-memory nvidia.com/gpu.shared"
	for name, c := range map[string]struct{ file, more, want string }{
		"of the documentation": {file, "", renamed},
		"mps":                  {of("timeSlicing", "mps"), "", renamed},
		"of the same name": {of("renameByDefault: true", "renameByDefault: false"), "",
			"gpuledger.dev/gpu-memory nvidia.com/gpu"},
		"without a domain": {of("nvidia.com/gpu", "gpu"), "", renamed},
		"of one replica":   {of("replicas: 4", "replicas: 1"), "", "gpuledger.dev/gpu-memory"},
		"without sharing":  {"version: v1", "", "gpuledger.dev/gpu-memory"},
		"listed, too":      {file, ", shared: [nvidia.com/gpu.shared]", renamed},
	} {
		t.Run(name, func(t *testing.T) {
			_, scheduler := schedulerFiles(t, fmt.Sprintf("{agent: device-plugin, scheduler: {"+
				"enabled: true, resources: [{name: gpuledger.dev/gpu-memory}], nvidiaDevicePlugin: %q%s}}",
				c.file, c.more))
			if got := strings.Join(managed(scheduler), " "); got != c.want {
				t.Errorf("it is asked for %s, want %s", got, c.want)
			}
		})
	}
}

// The scheduler, the webhook and the device plugin end with such a file (kube/dialect). The upgrade
// would leave a cluster without them.
func TestAFileOfNVIDIAsThatTheProgramsRefuseIsRefused(t *testing.T) {
	const shares = "sharing: {timeSlicing: {resources: [%s]}}"
	for name, c := range map[string]struct{ file, want string }{
		"two ways":        {"sharing: {mps: {}, timeSlicing: {}}", "both timeSlicing and mps"},
		"another version": {"version: v2", `the version is "v2", and v1 is known`},
		"a number":        {"version: 1", `the version is "1", and v1 is known`},
		"MIG": {fmt.Sprintf(shares, "{name: nvidia.com/mig-1g.5gb, replicas: 2}"),
			`it divides "nvidia.com/mig-1g.5gb", and gpuledger can divide nvidia.com/gpu only`},
		"no replicas":       {fmt.Sprintf(shares, "{name: gpu}"), "0 replicas, and 1 to 1000 are possible"},
		"too many replicas": {fmt.Sprintf(shares, "{name: gpu, replicas: 1001}"), "has 1001 replicas"},
		"a name twice": {fmt.Sprintf(shares, "{name: gpu, replicas: 2}, {name: nvidia.com/gpu, replicas: 3}"),
			"there twice"},
		"no version":       {"sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}", ""},
		"an empty version": {"version:", ""},
		"an empty way":     {"sharing: {mps: , timeSlicing: {resources: [{name: gpu, replicas: 2}]}}", ""},
	} {
		for _, values := range []string{"agent: device-plugin, scheduler: {enabled: true, ",
			"agent: dra, webhook: {enabled: true}, scheduler: {"} {
			_, err := rendered(t, namespace, "v1.36.2",
				fmt.Sprintf("{%snvidiaDevicePlugin: %q}}", values, c.file))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(),
				"scheduler.nvidiaDevicePlugin: ") || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: %s: got %v, want %q", name, values, err, c.want)
			}
		}
	}
}

// In a cluster of more than 100 nodes kube-scheduler stops at a part of them by default, before it
// asks the extender. A pod then waits, though another node has room on a GPU.
func TestTheExtenderIsAskedAboutEveryNode(t *testing.T) {
	_, chart := schedulerFiles(t, "{agent: device-plugin, scheduler: {enabled: true, names: [a, b]}}")
	help, err := os.ReadFile("../../../kube/cmd/gpuledger-kube/scheduler.go")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(help), "    apiVersion: kubescheduler")
	example, _, _ = strings.Cut("    apiVersion: kubescheduler"+example, "`")
	for name, c := range map[string]*config.KubeSchedulerConfiguration{"the chart": chart,
		"the example": schedulerConfig(t, strings.ReplaceAll(example, "\n    ", "\n")[4:])} {
		if p := c.PercentageOfNodesToScore; p == nil || *p != 100 {
			t.Errorf("%s: kube-scheduler asks about a part of the nodes", name)
		}
		for _, profile := range c.Profiles {
			if profile.PercentageOfNodesToScore != nil {
				t.Errorf("%s: profile %s has its own part", name, profile.SchedulerName)
			}
		}
	}
}

// A pod that asks by an annotation asks for no resource, so the extender is asked about every pod.
func TestForNamesOfAnnotationsTheExtenderIsAskedAboutEveryPod(t *testing.T) {
	_, c := schedulerFiles(t, `{agent: device-plugin, scheduler: {enabled: true,
		resources: [{name: gpu-memory}, {name: gpuledger.dev/gpu-memory}]}}`)
	if len(managed(c)) != 0 {
		t.Errorf("it is asked only about pods with %v", managed(c))
	}
	for _, of := range c.Profiles[0].PluginConfig {
		if fit, is := of.Args.(*config.NodeResourcesFitArgs); is {
			if !slices.Equal(fit.IgnoredResources, []string{"gpuledger.dev/gpu-memory"}) {
				t.Errorf("kube-scheduler counts all but %v itself", fit.IgnoredResources)
			}
			return
		}
	}
	t.Error("kube-scheduler counts the resources itself")
}

// The programs read their files when they start. So their pods are replaced when a file of theirs
// changes, and only then.
func TestNewFilesReplaceThePodsThatReadThem(t *testing.T) {
	templates := func(scheduler, webhook string) map[string]string {
		all, err := rendered(t, namespace, "v1.36.2", "{agent: device-plugin, scheduler: {"+scheduler+
			"}, webhook: {enabled: true"+webhook+"}}")
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for _, o := range all {
			if pods := podsOf(o); pods != nil && o.name != "gpuledger-setup" {
				found[o.name] = pods.Annotations["gpuledger.dev/config"]
			}
		}
		return found
	}
	before := templates("enabled: true", "")
	for name, c := range map[string]struct{ scheduler, webhook, want string }{
		"names of resources": {"enabled: true, resources: [{name: aliyun.com/gpu-mem}]", "",
			"gpuledger-device-plugin gpuledger-scheduler gpuledger-webhook"},
		"NVIDIA's sharing": {"enabled: true, nvidiaDevicePlugin: 'version: v1'", "",
			"gpuledger-device-plugin gpuledger-scheduler gpuledger-webhook"},
		"names of the scheduler": {"enabled: true, names: [gpuledger-scheduler, other]", "",
			"gpuledger-scheduler"},
		"the part of a GPU": {"enabled: true", ", partOf: 80GiB", "gpuledger-webhook"},
		"what no file has":  {"enabled: true, replicas: 3", ", replicas: 3", ""},
	} {
		var changed []string
		for pods, hash := range templates(c.scheduler, c.webhook) {
			if hash != before[pods] {
				changed = append(changed, pods)
			}
		}
		slices.Sort(changed)
		if got := strings.Join(changed, " "); got != c.want {
			t.Errorf("%s: the pods of %q are replaced, want %q", name, got, c.want)
		}
	}
	all, err := rendered(t, namespace, "v1.36.2", "agent: device-plugin")
	if err != nil {
		t.Fatal(err)
	}
	if set, _ := agentOf(t, all); set.Spec.Template.Annotations != nil {
		t.Errorf("it reads no names, and its pods have %v", set.Spec.Template.Annotations)
	}
}

func TestTheSchedulerIsTheClustersVersion(t *testing.T) {
	for version, want := range map[string]string{"v1.30.4": "registry.k8s.io/kube-scheduler:v1.30.4",
		"v1.31.2-gke.100": "registry.k8s.io/kube-scheduler:v1.31.2"} {
		all, err := rendered(t, namespace, version, "{agent: device-plugin, scheduler: {enabled: true}}")
		if err != nil {
			t.Fatal(err)
		}
		d := byName(all)["Deployment/gpuledger-scheduler"].value.(*apps.Deployment)
		if got := d.Spec.Template.Spec.Containers[0].Image; got != want {
			t.Errorf("%s: %s, want %s", version, got, want)
		}
	}
}

func TestTheSchedulerIsRefusedWhereItCannotWork(t *testing.T) {
	for values, want := range map[string]string{
		"{agent: dra, scheduler: {enabled: true}}":                                                      "scheduler.enabled is for agent device-plugin",
		"{agent: device-plugin, scheduler: {enabled: true}, config: {annotations: {trust: verify}}}":    `needs annotations.trust = "adopt"`,
		"{agent: device-plugin, webhook: {enabled: true}}":                                              "webhook.enabled with agent device-plugin needs scheduler.enabled",
		"{agent: device-plugin, scheduler: {enabled: true, nvidiaDevicePlugin: '['}}":                   "scheduler.nvidiaDevicePlugin cannot be read",
		"{agent: dra, webhook: {enabled: true, partOf: half}}":                                          "partOf",
		"{agent: device-plugin, scheduler: {enabled: true, names: [default-scheduler]}}":                "names",
		"{agent: device-plugin, scheduler: {enabled: true, resources: [{name: a/b, colour: a green}]}}": "colour",
	} {
		if _, err := rendered(t, namespace, "v1.36.2", values); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", values, err, want)
		}
	}
	if _, err := rendered(t, namespace, "v1.29.4",
		"{agent: device-plugin, scheduler: {enabled: true}}"); err == nil ||
		!strings.Contains(err.Error(), "scheduler.enabled needs Kubernetes 1.30 or later") {
		t.Errorf("got %v", err)
	}
}

// An image that is never pulled is on the chart's nodes alone: elsewhere the pod does not start.
func TestPodsGoWhereTheirImageIs(t *testing.T) {
	const all, off = "{agent: device-plugin, scheduler: {enabled: true%s}, " +
		"webhook: {enabled: true%[1]s}%s}", "node.kubernetes.io/"
	for name, c := range map[string]struct{ of, more, selector, tolerations string }{
		"by default": {"", "", "map[gpuledger.dev/node:shared]", "NoSchedule:"},
		"nodes of the chart": {"", ", nodeSelector: {a: b}, tolerations: [{key: gpu}]",
			"map[a:b gpuledger.dev/node:shared]", "gpu:"},
		"nodes of its own": {", nodeSelector: {c: d}", "", "map[c:d]", ""},
		"tolerations of its own": {", tolerations: [{key: e, operator: Exists}]", "",
			"map[gpuledger.dev/node:shared]", "e:"},
		"an image that is pulled": {"", ", image: {pullPolicy: IfNotPresent}", "map[]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := rendered(t, namespace, "v1.36.2", fmt.Sprintf(all, c.of, c.more))
			if err != nil {
				t.Fatal(err)
			}
			for _, deployment := range []string{"scheduler", "webhook"} {
				pod := podsOf(byName(objects)["Deployment/gpuledger-"+deployment]).Spec
				got := ""
				for _, toleration := range pod.Tolerations {
					if toleration.Value != "never" || !strings.HasPrefix(toleration.Key, off) {
						got += toleration.Key + string(toleration.Effect) + ":"
					}
				}
				if fmt.Sprint(pod.NodeSelector) != c.selector || got != c.tolerations {
					t.Errorf("%s goes to %v with %s, want %s with %s", deployment, pod.NodeSelector, got,
						c.selector, c.tolerations)
				}
			}
			for _, o := range objects {
				pods := podsOf(o)
				if pods == nil {
					continue
				}
				never := slices.ContainsFunc(pods.Spec.Containers,
					func(c core.Container) bool { return c.ImagePullPolicy == core.PullNever })
				if never && len(pods.Spec.NodeSelector) == 0 {
					t.Errorf("%s/%s goes to nodes without its image", o.kind, o.name)
				}
			}
		})
	}
}

// Some clusters admit pods of a critical priority only where a quota names it.
func TestTheQuotaIsForAllPods(t *testing.T) {
	for values, want := range map[string]string{
		"": "system-node-critical",
		", scheduler: {enabled: true}, webhook: {enabled: true}": "system-node-critical system-cluster-critical",
		", priorityClassName: '', scheduler: {enabled: true}":    "system-cluster-critical",
		", priorityClassName: ''":                                "system-node-critical",
		", scheduler: {enabled: true, priorityClassName: a}":     "system-node-critical a",
	} {
		all, err := rendered(t, namespace, "v1.36.2", "{agent: device-plugin, resourceQuota: 300"+values+"}")
		if err != nil {
			t.Fatal(err)
		}
		quota := byName(all)["ResourceQuota/gpuledger"].value.(*core.ResourceQuota)
		admitted := quota.Spec.ScopeSelector.MatchExpressions[0].Values
		if got := strings.Join(admitted, " "); got != want {
			t.Errorf("%q: a quota for %s, want %s", values, got, want)
		}
		for _, o := range all {
			if pods := podsOf(o); pods != nil && pods.Spec.PriorityClassName != "" &&
				!slices.Contains(admitted, pods.Spec.PriorityClassName) {
				t.Errorf("%q: a quota for %v, and %s/%s has %s", values, admitted, o.kind, o.name,
					pods.Spec.PriorityClassName)
			}
		}
	}
}

// The programs exit on names that they cannot read, on all nodes. kube/dialect has a test with the
// same file.
func TestTheSchemaTakesTheNamesThatTheProgramsRead(t *testing.T) {
	text, err := os.ReadFile("../../../kube/dialect/testdata/resources.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Taken, Refused []map[string]string }
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	log.SetOutput(io.Discard) // Helm logs each link in files/
	chart, err := loader.LoadDir(manifests + "helm")
	if err != nil {
		t.Fatal(err)
	}
	schema := func(r map[string]string) error {
		resource := map[string]any{}
		for key, value := range r {
			resource[key] = value
		}
		values, err := chartutil.CoalesceValues(chart, map[string]any{"agent": "device-plugin",
			"scheduler": map[string]any{"enabled": true, "resources": []any{resource}}})
		if err != nil {
			t.Fatal(err)
		}
		return chartutil.ValidateAgainstSchema(chart, values)
	}
	for _, r := range all.Taken {
		if err := schema(r); err != nil {
			t.Errorf("%v: %v", r, err)
		}
	}
	for _, r := range all.Refused {
		if err := schema(r); err == nil || !strings.Contains(err.Error(), "/scheduler/resources/0") {
			t.Errorf("%v: got %v", r, err)
		}
	}
}

// The webhook reads the scheduler's names, sends pods to that scheduler, and answers for the
// Service of its own namespace.
func TestTheWebhookOfTheChart(t *testing.T) {
	all, err := rendered(t, "gpus", "v1.30.4", `{agent: device-plugin, webhook: {enabled: true},
		scheduler: {enabled: true, names: [gpus, kai-scheduler], resources: [{name: gpu-fraction}]}}`)
	if err != nil {
		t.Fatal(err)
	}
	d := byName(all)["Deployment/gpuledger-webhook"].value.(*apps.Deployment)
	want := "webhook --agent=device-plugin --resources-file=/etc/gpuledger-webhook/resources.toml " +
		"--service=gpus/gpuledger-webhook --scheduler=gpus"
	if got := strings.Join(d.Spec.Template.Spec.Containers[0].Args, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if d.Spec.Strategy.Type != apps.RollingUpdateDeploymentStrategyType {
		t.Errorf("all pods end before the new ones work: %+v", d.Spec.Strategy)
	}
	m := byName(all)["ConfigMap/gpuledger-webhook"].value.(*core.ConfigMap)
	if !strings.Contains(m.Data["resources.toml"], `name = "gpu-fraction"`) {
		t.Errorf("it reads %s", m.Data["resources.toml"])
	}
}

// Nodes trust the scheduler's annotations until they have the new configuration, so the policy that
// keeps tenants from writing them stays without the scheduler. It comes only with the scheduler,
// because the annotations may be those of another one.
func TestThePolicyOfAnnotationsStays(t *testing.T) {
	policy := func(release, into string) *cluster {
		return having(t, "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, "+
			"metadata: {name: allocations.gpuledger.dev, annotations: {meta.helm.sh/release-name: "+release+
			", meta.helm.sh/release-namespace: "+into+"}}}")
	}
	const without = "{agent: device-plugin, scheduler: {enabled: false}}"
	for name, c := range map[string]struct {
		has             *cluster
		version, values string
		want            bool
	}{
		"with the scheduler": {having(t), "v1.30.4",
			"{agent: device-plugin, scheduler: {enabled: true}}", true},
		"the scheduler is gone": {policy("gpuledger", namespace), "v1.36.2", without, true},
		"it was never there":    {having(t), "v1.36.2", without, false},
		"another release's":     {policy("other", namespace), "v1.36.2", without, false},
		"not a release's": {having(t, "{apiVersion: admissionregistration.k8s.io/v1, kind: "+
			"ValidatingAdmissionPolicy, metadata: {name: allocations.gpuledger.dev}}"), "v1.36.2",
			without, false},
		"nodes that are not the chart's": {policy("gpuledger", namespace), "v1.36.2",
			"{agent: device-plugin, setup: {enabled: false}}", true},
		"an API without policies": {policy("gpuledger", namespace), "v1.29.9", without, false},
	} {
		all, err := renderedWith(t, c.has, namespace, c.version, c.values)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		objects := byName(all)
		for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
			if _, found := objects[kind+"/allocations.gpuledger.dev"]; found != c.want {
				t.Errorf("%s: the %s is there: %v", name, kind, found)
			}
		}
		if name == "nodes that are not the chart's" {
			files, err := renderedFiles(t, c.has, namespace, c.version, c.values)
			notes := files["gpuledger/templates/NOTES.txt"]
			const want = "First set annotations.trust of the nodes back to verify yourself. When all nodes " +
				"have it:\n"
			if err != nil || !strings.Contains(notes, want) {
				t.Errorf("%s: the notes are %s, %v", name, notes, err)
			}
		}
	}
}
