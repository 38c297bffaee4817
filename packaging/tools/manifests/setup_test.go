package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"sigs.k8s.io/yaml"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/policy"
)

func mustRender(t *testing.T, into, kubernetes, values string) map[string]manifest {
	t.Helper()
	objects, err := rendered(t, into, kubernetes, values)
	if err != nil {
		t.Fatal(err)
	}
	return byName(objects)
}

// policyOf is what gpuledger reads on a node of a kind, over the node's own file.
func policyOf(t *testing.T, objects map[string]manifest, kind, node string) grant.Policy {
	t.Helper()
	text, found := objects["ConfigMap/gpuledger-config"].value.(*core.ConfigMap).Data[kind+".toml"]
	if !found {
		t.Fatalf("there is nothing for %s", kind)
	}
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(node), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := policy.Over(path, []byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return p
}

// The chart begins in report mode, one value enforces, and the agents' pods are exempt: no others.
func TestTheChartBeginsInReportMode(t *testing.T) {
	const node = "[policy]\nmode = \"report\"\nprivileged = \"strip\"\n"
	p := policyOf(t, mustRender(t, "gpus", "v1.36.2", "{}"), "default", "[policy]\nmode = \"enforce\"\n")
	if p.Rules.Mode != grant.Report {
		t.Errorf("the mode is %s", p.Rules.Mode)
	}
	p = policyOf(t, mustRender(t, "gpus", "v1.36.2", "policy: {mode: enforce}"), "default", node)
	if p.Rules.Mode != grant.Enforce || p.Rules.Privileged != grant.Strip {
		t.Errorf("got %+v", p.Rules)
	}
	for who, want := range map[grant.Identity]bool{
		{Namespace: "gpus", Pod: "gpuledger-setup-x7k2p", Container: "install"}:       true,
		{Namespace: "gpus", Pod: "gpuledger-dra-x7k2p", Container: "agent"}:           true,
		{Namespace: "gpus", Pod: "gpuledger-device-plugin-x7k2p", Container: "agent"}: true,
		{Namespace: "gpus", Pod: "gpuledger-setup-x7k2p", Container: "config"}:        false,
		{Namespace: namespace, Pod: "gpuledger-dra-x7k2p", Container: "agent"}:        false,
		{Namespace: "gpus", Pod: "gpuledger-setup-x7k2p-more", Container: "install"}:  false,
		{Namespace: "gpus", Pod: "gpuledger-uninstall-x7k2p", Container: "uninstall"}: false,
	} {
		if got := admission.Exempt(who, p); got != want {
			t.Errorf("%+v is exempt: %v", who, got)
		}
	}
}

const kinds = `
policy: {mode: enforce, reserve: 1GiB, exempt: [{namespace: gpu-operator}]}
config:
  audit: {keep: 8}
  ask: {total: 50, max_gpus: 2}
  quota: [{user: ada, gpus: 2, grants: 3}]
  inventory: {driver_root: /run/nvidia/driver}
kinds:
  - name: h100
    nodeSelector: {gpu: h100}
    policy: {mode: report}
    config: {pool: [{gpus: ["0-3"], modes: [limit, mps], place: spread}], audit: {max_size: 64MiB}}
  - name: old
    nodeSelector: {generation: old}
`

func TestKindsOfNodesDiffer(t *testing.T) {
	objects := mustRender(t, namespace, "v1.36.2", kinds)
	want := policy.Default()
	want.Rules.Reserve, want.Audit.Keep, want.Inventory.DriverRoot = grant.Size(grant.GiB), 8,
		"/run/nvidia/driver"
	want.Asks.Total, want.Asks.MaxGPUs = 50, 2
	want.Quotas = []grant.Quota{{User: "ada", GPUs: 2, Grants: 3}}
	for kind, change := range map[string]func(*grant.Policy){
		"default": func(*grant.Policy) {}, "old": func(*grant.Policy) {},
		"h100": func(p *grant.Policy) {
			p.Rules.Mode, p.Audit.MaxSize = grant.Report, grant.Size(64*grant.MiB)
			p.Pools = []grant.Pool{{GPUs: []string{"0-3"}, Modes: []grant.Mode{grant.Limit, grant.MPS},
				Place: grant.Spread}}
		}} {
		want := want
		change(&want)
		got := policyOf(t, objects, kind, "")
		if last := got.Rules.Exempt[len(got.Rules.Exempt)-1]; last.Namespace != "gpu-operator" {
			t.Errorf("%s: the last exemption is %+v", kind, last)
		}
		if !admission.Exempt(grant.Identity{Namespace: namespace, Pod: "gpuledger-setup-h100-x7k2p",
			Container: "install"}, got) {
			t.Errorf("%s: the set-up of h100 is not exempt", kind)
		}
		got.Rules.Exempt = nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got\n%+v\nwant\n%+v", kind, got, want)
		}
	}
}

// Each node gets the set-up of one kind: the first that selects it, else the default.
func TestANodeIsOfOneKind(t *testing.T) {
	objects := mustRender(t, namespace, "v1.36.2", kinds)
	for nodes, want := range map[string]string{"{}": "gpuledger-setup", "{gpu: h100}": "gpuledger-setup-h100",
		"{generation: old}": "gpuledger-setup-old", "{gpu: h100, generation: old}": "gpuledger-setup-h100",
		"{gpu: other}": "gpuledger-setup"} {
		labels := map[string]string{}
		if err := yaml.Unmarshal([]byte(nodes), &labels); err != nil {
			t.Fatal(err)
		}
		labels["gpuledger.dev/node"] = "shared"
		var got []string
		for name, o := range objects {
			if set, is := o.value.(*apps.DaemonSet); is && strings.HasPrefix(name,
				"DaemonSet/gpuledger-setup") &&
				runsOn(set.Spec.Template.Spec, labels) {
				got = append(got, set.Name)
				key := strings.TrimPrefix(strings.TrimPrefix(set.Name, "gpuledger-setup"), "-")
				if key == "" {
					key = "default"
				}
				for _, v := range set.Spec.Template.Spec.Volumes {
					if v.ConfigMap != nil && v.ConfigMap.Items[0].Key != key+".toml" {
						t.Errorf("%s has %s", set.Name, v.ConfigMap.Items[0].Key)
					}
				}
			}
		}
		if !slices.Equal(got, []string{want}) {
			t.Errorf("nodes with %s get %v, want %s", nodes, got, want)
		}
	}
}

// runsOn reports whether a pod's selectors match a node.
func runsOn(pod core.PodSpec, labels map[string]string) bool {
	for label, value := range pod.NodeSelector {
		if labels[label] != value {
			return false
		}
	}
	if pod.Affinity == nil {
		return true
	}
	terms := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for _, e := range terms[0].MatchExpressions {
		if value, has := labels[e.Key]; e.Operator != core.NodeSelectorOpNotIn || has &&
			slices.Contains(e.Values, value) {
			return false
		}
	}
	return len(terms) == 1
}

// The schema knows the keys that the cluster may set, and no others.
func TestTheSchemaHasEachKey(t *testing.T) {
	text, err := os.ReadFile(manifests + "helm/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Definitions struct {
			Policy, Config schemaPart
		}
	}
	if err := yaml.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	all := schema.Definitions.Config
	all.Properties["policy"] = schema.Definitions.Policy
	for field := range reflect.TypeFor[grant.Policy]().Fields() {
		name := field.Tag.Get("toml")
		if slices.Contains([]string{"state_dir", "run_dir", "-", "engine", "runtime", "cdi"}, name) {
			continue
		}
		part, found := all.Properties[name]
		if !found {
			t.Errorf("the schema has no %s", name)
		}
		compare(t, name, field.Type, part)
		delete(all.Properties, name)
	}
	if len(all.Properties) > 0 {
		t.Errorf("the schema has %v", slices.Sorted(maps.Keys(all.Properties)))
	}
}

// schemaPart is a part of a schema.
type schemaPart struct {
	Properties map[string]schemaPart
	Items      *schemaPart
}

func compare(t *testing.T, name string, is reflect.Type, has schemaPart) {
	t.Helper()
	if is.Kind() == reflect.Slice && has.Items != nil {
		is, has = is.Elem(), *has.Items
	}
	if is.Kind() != reflect.Struct {
		return
	}
	for field := range is.Fields() {
		key := field.Tag.Get("toml")
		part, found := has.Properties[key]
		if !found {
			t.Errorf("the schema has no %s.%s", name, key)
			continue
		}
		compare(t, name+"."+key, field.Type, part)
		delete(has.Properties, key)
	}
	for key := range has.Properties {
		t.Errorf("gpuledger has no %s.%s", name, key)
	}
}

// The agent is the one that the cluster can have.
func TestTheAgentIsChosen(t *testing.T) {
	for version, want := range map[string]string{"v1.36.2": "gpuledger-dra",
		"v1.37.0-gke.100": "gpuledger-dra",
		"v1.36.2-eks-1":   "gpuledger-dra", "v1.36.0": "gpuledger-dra",
		"v1.35.4": "gpuledger-device-plugin"} {
		objects := mustRender(t, namespace, version, "{}")
		for _, name := range []string{"gpuledger-dra", "gpuledger-device-plugin"} {
			if _, found := objects["DaemonSet/"+name]; found != (name == want) {
				t.Errorf("%s: there is %s: %v", version, name, found)
			}
		}
	}
}

// On nodes with packages only their configuration is set, without a privileged container.
func TestNodesWithPackages(t *testing.T) {
	objects := mustRender(t, namespace, "v1.36.2", "setup: {install: false}")
	pod := objects["DaemonSet/gpuledger-setup"].value.(*apps.DaemonSet).Spec.Template.Spec
	if len(pod.InitContainers) > 0 || pod.SecurityContext != nil && pod.SecurityContext.HostPID {
		t.Errorf("got %+v", pod)
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil && v.HostPath.Path != "/etc/gpuledger" {
			t.Errorf("it mounts %s", v.HostPath.Path)
		}
	}
	if objects := mustRender(t, namespace, "v1.36.2",
		"setup: {enabled: false}"); objects["Job/gpuledger-uninstall"].value != nil ||
		objects["ConfigMap/gpuledger-config"].value != nil {
		t.Error("without a set-up there is something to undo")
	}
}

// No account of the set-up reaches the API. That of the removal exists only for it, and may change
// no more than it does.
func TestWhatTheSetUpMayDo(t *testing.T) {
	for agent, may := range map[string]string{"dra": "[resourceclaims] [list], [nodes] [list]",
		"device-plugin": "[pods] [list], [nodes] [list patch]"} {
		all, err := rendered(t, namespace, "v1.36.2", kinds+"\nagent: "+agent)
		if err != nil {
			t.Fatal(err)
		}
		rest, made := hooks(all)
		for name := range byName(rest) {
			if strings.Contains(name, "uninstall") {
				t.Errorf("%s exists all the time", name)
			}
		}
		objects := byName(made)
		cluster := objects["ClusterRole/gpuledger-uninstall"].value.(*rbac.ClusterRole).Rules
		var everywhere, got []string
		for _, rule := range cluster {
			everywhere = append(everywhere, fmt.Sprint(rule.Resources, rule.Verbs))
		}
		if got := strings.Join(everywhere, ", "); got != may {
			t.Errorf("%s: in all namespaces it may %s, want %s", agent, got, may)
		}
		for _, rule := range objects["Role/gpuledger-uninstall"].value.(*rbac.Role).Rules {
			got = append(got, fmt.Sprint(rule.Resources, rule.ResourceNames, rule.Verbs))
		}
		want := []string{"[daemonsets] [gpuledger-dra gpuledger-device-plugin gpuledger-setup " +
			"gpuledger-setup-h100 " +
			"gpuledger-setup-old] [get patch]", "[configmaps] [gpuledger-config] [get patch]",
			"[pods] [] [list]"}
		if !slices.Equal(got, want) {
			t.Errorf("in its namespace it may\n%s", strings.Join(got, "\n"))
		}
		job := objects["Job/gpuledger-uninstall"].value.(*batch.Job).Spec.Template.Spec
		c := job.Containers[0]
		if !slices.Equal(c.Args, []string{"uninstall", "--timeout=4m", "gpuledger-setup",
			"gpuledger-setup-h100",
			"gpuledger-setup-old"}) || len(job.Volumes) > 0 || !*c.SecurityContext.RunAsNonRoot {
			t.Errorf("got %+v", c)
		}
		until := objects["Job/gpuledger-uninstall"].value.(*batch.Job).Spec.ActiveDeadlineSeconds
		if until == nil || *until != 300 || job.PriorityClassName != "system-node-critical" {
			t.Errorf("the job ends after %v seconds, with priority %q", until, job.PriorityClassName)
		}
		for _, toleration := range job.Tolerations {
			if (toleration.Key == "" || toleration.Key == "node.kubernetes.io/unreachable") &&
				toleration.Value == "" &&
				toleration.Effect != core.TaintEffectNoSchedule {
				t.Errorf("the job may go to a node that is down: %+v", toleration)
			}
		}
		for _, o := range made { // Helm deletes hook-succeeded also after a Job that has failed
			named, err := meta.Accessor(o.value)
			if err != nil {
				t.Fatal(err)
			}
			notes := named.GetAnnotations()
			if o.kind != "Job" && notes["helm.sh/hook"] == "pre-delete" &&
				notes["helm.sh/hook-delete-policy"] != "before-hook-creation" {
				t.Errorf("%s/%s may be deleted while the job runs", o.kind, o.name)
			}
		}
	}
	for name, o := range mustRender(t, namespace, "v1.36.2", kinds) {
		set, is := o.value.(*apps.DaemonSet)
		if !is || !strings.Contains(name, "setup") {
			continue
		}
		pod := set.Spec.Template.Spec
		c := pod.Containers[0].SecurityContext
		if *pod.AutomountServiceAccountToken || pod.ServiceAccountName != "" || *c.AllowPrivilegeEscalation ||
			!*c.ReadOnlyRootFilesystem || !slices.Equal(c.Capabilities.Drop, []core.Capability{"ALL"}) {
			t.Errorf("%s: %+v", name, pod)
		}
	}
}

// helm lint has nothing to say.
func TestHelmLints(t *testing.T) {
	for _, m := range lint.All(manifests+"helm", nil, namespace, true).Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

// The agents serve metrics where that is asked for, and only then may pods connect to them.
func TestMetricsOfTheAgents(t *testing.T) {
	for agent, name := range map[string]string{"dra": "gpuledger-dra",
		"device-plugin": "gpuledger-device-plugin"} {
		off := mustRender(t, namespace, "v1.36.2", "agent: "+agent)
		on := mustRender(t, namespace, "v1.36.2", "{agent: "+agent+
			", metrics: {enabled: true, podMonitor: true, "+
			"from: [{namespaceSelector: {matchLabels: {a: b}}}]}, resourceQuota: 300}")
		for objects, want := range map[*map[string]manifest]bool{&off: false, &on: true} {
			c := (*objects)["DaemonSet/"+name].value.(*apps.DaemonSet).Spec.Template.Spec.Containers[0]
			rules := (*objects)["NetworkPolicy/gpuledger"].value.(*networking.NetworkPolicy).Spec.Ingress
			_, quota := (*objects)["ResourceQuota/gpuledger"]
			if slices.Contains(c.Args, "--listen=:9838") != want || (len(c.Ports) == 1) != want ||
				quota != want ||
				(len(rules) == 1) != want || want && (len(rules[0].From) != 1 ||
				rules[0].Ports[0].Port.IntValue() != 9838) {
				t.Errorf("%s, metrics %v: %v %v %v", agent, want, c.Args, c.Ports, rules)
			}
		}
	}
}

// TestOpenShift: the constraint is bound, and the pods have the SELinux context, where that is
// asked for.
func TestOpenShift(t *testing.T) {
	const asked = "{openshift: true, seLinuxOptions: {type: spc_t}}"
	for values, want := range map[string]bool{"{}": false, asked: true} {
		objects := mustRender(t, namespace, "v1.36.2", values)
		if _, bound := objects["RoleBinding/gpuledger-privileged"]; bound != want {
			t.Errorf("%s: a binding is there: %v", values, bound)
		}
		for _, name := range []string{"gpuledger-setup", "gpuledger-dra"} {
			context := objects["DaemonSet/"+name].value.(*apps.DaemonSet).Spec.Template.Spec.SecurityContext
			if has := context != nil && context.SELinuxOptions != nil &&
				context.SELinuxOptions.Type == "spc_t"; has != want {
				t.Errorf("%s: %s has the context %+v", values, name, context)
			}
		}
	}
}

// A hang of an agent is seen, and each probe asks the agent that runs there.
func TestTheAgentsAreProbed(t *testing.T) {
	for agent, name := range map[string]string{"dra": "gpuledger-dra",
		"device-plugin": "gpuledger-device-plugin"} {
		c := mustRender(t, namespace, "v1.36.2", "agent: "+
			""+agent)["DaemonSet/"+name].value.(*apps.DaemonSet).Spec.Template.Spec.Containers[0]
		if got := append(c.LivenessProbe.Exec.Command, c.ReadinessProbe.Exec.Command...); !slices.Equal(got,
			[]string{
				"/usr/bin/gpuledger-kube", "probe", agent, "alive", "/usr/bin/gpuledger-kube", "probe", agent,
				"ready"}) {
			t.Errorf("got %q", got)
		}
	}
}
