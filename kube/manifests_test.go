package kube_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/gpuledger/gpuledger/internal/request"
	"github.com/gpuledger/gpuledger/kube/dra"
)

// TestThePolicyKeepsAllAllocations: each of our annotations that a node reads as an allocation.
func TestThePolicyKeepsAllAllocations(t *testing.T) {
	text, err := os.ReadFile("manifests/scheduler/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	kept := regexp.MustCompile(regexp.MustCompile(`k\.matches\('(.*)'\)`).FindStringSubmatch(string(text))[1])
	read := 0
	for _, name := range request.Names() {
		if !strings.HasPrefix(name, "gpuledger.dev/") || name == "gpuledger.dev/grant" {
			continue
		}
		read++
		if !kept.MatchString(name) || !kept.MatchString(name+".main") {
			t.Errorf("everyone can write %s", name)
		}
	}
	if read < 5 {
		t.Errorf("%d annotations", read)
	}
}

// objects reads every manifest with the API's own types. An unknown or duplicate field is an error.
func objects(t *testing.T) map[string][]runtime.Object {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	all := map[string][]runtime.Object{}
	err := filepath.WalkDir("manifests", func(path string, e fs.DirEntry, err error) error {
		// These are templates; packaging/tools/manifests renders them.
		if err == nil && path == filepath.Join("manifests", "helm") {
			return filepath.SkipDir
		}
		if err != nil || e.IsDir() || filepath.Base(path) == "kustomization.yaml" {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for r := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content))); ; {
			document, err := r.Read()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			object, _, err := decoder.Decode(document, nil, nil)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			all[path] = append(all[path], object)
		}
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("read %d manifests: %v", len(all), err)
	}
	return all
}

func TestManifestsAreValidAPIObjects(t *testing.T) {
	classes := map[string]bool{}
	for _, list := range objects(t) {
		for _, object := range list {
			if class, is := object.(*resourceapi.DeviceClass); is {
				classes[class.Name] = true
				for _, c := range class.Spec.Config {
					config, err := dra.ParseConfig(c.Opaque.Parameters.Raw)
					if err != nil || c.Opaque.Driver != dra.DriverName ||
						class.Name != string(config.Mode)+"."+dra.DriverName ||
						!strings.Contains(class.Spec.Selectors[0].CEL.Expression,
							`mode == "`+string(config.Mode)+`"`) {
						t.Errorf("class %s: %+v, %v", class.Name, config, err)
					}
				}
			}
		}
	}
	for path, list := range objects(t) {
		for _, object := range list {
			if template, is := object.(*resourceapi.ResourceClaimTemplate); is {
				for _, r := range template.Spec.Spec.Devices.Requests {
					if !classes[r.Exactly.DeviceClassName] {
						t.Errorf("%s requests class %q, which no manifest defines", path,
							r.Exactly.DeviceClassName)
					}
				}
			}
		}
	}
}

// A class that a quota does not name has no quota.
func TestTheQuotaOfTheDocumentsNamesEachClass(t *testing.T) {
	text, err := os.ReadFile("../docs/kubernetes-dialects.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ = bytes.Cut(text, []byte("### Quotas of claims"))
	_, text, _ = bytes.Cut(text, []byte("```yaml\n"))
	text, _, _ = bytes.Cut(text, []byte("```"))
	var quota corev1.ResourceQuota
	if err := sigsyaml.UnmarshalStrict(text, &quota); err != nil {
		t.Fatal(err)
	}
	var has, want []string
	for name := range quota.Spec.Hard {
		has = append(has, string(name))
	}
	for _, list := range objects(t) {
		for _, object := range list {
			if class, is := object.(*resourceapi.DeviceClass); is {
				want = append(want, class.Name+corev1.ResourceClaimsPerClass)
			}
		}
	}
	slices.Sort(has)
	slices.Sort(want)
	if len(want) == 0 || !slices.Equal(has, want) {
		t.Errorf("the quota names\n%s\nwant\n%s", strings.Join(has, "\n"), strings.Join(want, "\n"))
	}
}

func TestEveryManifestIsPartOfAKustomization(t *testing.T) {
	for _, dir := range []string{"base", "dra", "device-plugin", "setup", "cluster-dra",
		"cluster-device-plugin", "scheduler", "cluster-scheduler"} {
		content, err := os.ReadFile(filepath.Join("manifests", dir, "kustomization.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var k struct {
			APIVersion string                          `json:"apiVersion"`
			Kind       string                          `json:"kind"`
			Resources  []string                        `json:"resources"`
			Images     []struct{ Name, NewTag string } `json:"images"`
			Patches    []struct {
				Target      struct{ Kind, Name string }
				Path, Patch string
			} `json:"patches"`
		}
		if err := sigsyaml.UnmarshalStrict(content, &k); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
		for _, p := range k.Patches {
			if p.Path != "" {
				k.Resources = append(k.Resources, p.Path)
			}
		}
		files, err := filepath.Glob(filepath.Join("manifests", dir, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if name := filepath.Base(file); name != "kustomization.yaml" &&
				!slices.Contains(k.Resources, name) {
				t.Errorf("%s is in no kustomization", file)
			}
		}
		for _, r := range k.Resources {
			if _, err := os.Stat(filepath.Join("manifests", dir, r)); err != nil {
				t.Errorf("%s names %s: %v", dir, r, err)
			}
		}
	}
}

// No role may allow more than its user does. This list is what a reviewer agreed to.
func TestRolesAllowOnlyWhatIsUsed(t *testing.T) {
	roles := map[string]map[string]string{
		"gpuledger-dra": {"resourceslices": "create delete list update watch", "resourceclaims": "get watch",
			"resourceclaims/status": "patch", "resourceclaims/driver": "associated-node:patch",
			"nodes": "get"},
		"gpuledger-device-plugin": {"nodes": "get patch watch"},
		"gpuledger-scheduler": {"nodes": "get list watch", "pods": "delete get list patch watch",
			"pods/binding": "create", "events": "create patch"},
		"gpuledger-viewer": {"resourceslices": "get list", "resourceclaims": "get list", "nodes": "get list",
			"pods": "get list", "events": "get list"},
		"gpuledger-webhook": {"mutatingwebhookconfigurations": "get update",
			"validatingwebhookconfigurations": "get update",
			"resourceclaimtemplates":          "create delete get list update", "pods": "list watch",
			"events": "create patch"},
		"gpuledger-explain": {"resourceclaims": "get", "pods": "get", "events": "list"},
	}
	for _, list := range objects(t) {
		for _, object := range list {
			o, is := object.(*rbacv1.ClusterRole)
			if !is {
				continue
			}
			allowed, known := roles[o.Name]
			delete(roles, o.Name)
			for _, rule := range o.Rules {
				verbs := strings.Join(slices.Sorted(slices.Values(rule.Verbs)), " ")
				for _, resource := range rule.Resources {
					if verbs != allowed[resource] {
						t.Errorf("role %s (known: %v) may %s %s, want %q", o.Name, known, verbs,
							resource, allowed[resource])
					}
				}
			}
		}
	}
	if len(roles) > 0 {
		t.Errorf("there are no roles %v", roles)
	}
}

// setUp is the DaemonSet that is no agent. packaging/tools/manifests has the tests of its account
// and its containers.
const setUp = "gpuledger-setup"

// The agents must not reach more of their nodes either. A test in cmd/gpuledger-kube shows that
// this is enough.
func TestAgentsReachOnlyWhatTheyNeed(t *testing.T) {
	const both = "/run/gpuledger /var/lib/gpuledger"
	written := map[string]string{"gpuledger-dra": "/run/cdi " + both +
		" /var/lib/kubelet/plugins/gpuledger.dev /var/lib/kubelet/plugins_registry",
		"gpuledger-device-plugin": both + " /var/lib/kubelet/device-plugins"}
	read := map[string]string{"gpuledger-dra": "",
		"gpuledger-device-plugin": " /var/lib/kubelet/pod-resources"}
	for _, list := range objects(t) {
		for _, object := range list {
			set, is := object.(*appsv1.DaemonSet)
			if !is || set.Name == setUp {
				continue
			}
			spec := set.Spec.Template.Spec
			c := spec.Containers[0].SecurityContext
			if len(spec.Containers) != 1 || len(spec.InitContainers) > 0 ||
				c.Privileged != nil && *c.Privileged ||
				*c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem ||
				!slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
				len(c.Capabilities.Add) > 0 ||
				c.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
				spec.HostNetwork || spec.HostIPC || spec.SecurityContext != nil {
				t.Errorf("daemon set %s has %+v", set.Name, c)
			}
			paths := map[string]string{}
			for _, v := range spec.Volumes {
				paths[v.Name] = v.HostPath.Path
			}
			mounts := map[bool][]string{}
			for _, m := range spec.Containers[0].VolumeMounts {
				if path := paths[m.Name]; !slices.Contains(mounts[m.ReadOnly], path) {
					mounts[m.ReadOnly] = append(mounts[m.ReadOnly], path)
				}
			}
			for readOnly, want := range map[bool]string{false: written[set.Name],
				true: "/etc/gpuledger /run/containerd/runc /run/crun /run/runc /sys/fs/cgroup " +
					"/usr/lib/gpuledger" +
					read[set.Name]} {
				slices.Sort(mounts[readOnly])
				if got := strings.Join(mounts[readOnly], " "); got != want {
					t.Errorf("daemon set %s, read-only %v: mounts %s\nwant %s", set.Name, readOnly, got, want)
				}
			}
			delete(written, set.Name)
		}
	}
	if len(written) > 0 {
		t.Errorf("there is no daemon set of %v", written)
	}
}

// The scheduler and the webhook reach nothing of their node.
func TestDeploymentsAreHardened(t *testing.T) {
	seen := 0
	for _, list := range objects(t) {
		for _, object := range list {
			d, is := object.(*appsv1.Deployment)
			if !is {
				continue
			}
			seen++
			spec := d.Spec.Template.Spec
			if !*spec.SecurityContext.RunAsNonRoot || spec.HostNetwork || spec.HostPID || spec.HostIPC ||
				spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("deployment %s has %+v", d.Name, spec.SecurityContext)
			}
			for _, v := range spec.Volumes {
				if v.ConfigMap == nil {
					t.Errorf("deployment %s has the volume %+v", d.Name, v)
				}
			}
			for _, c := range spec.Containers {
				if s := c.SecurityContext; *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
					!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
					len(s.Capabilities.Add) > 0 || s.Privileged != nil || c.LivenessProbe == nil {
					t.Errorf("deployment %s, container %s has %+v", d.Name, c.Name, s)
				}
			}
		}
	}
	if seen != 2 {
		t.Errorf("there are %d deployments, want 2", seen)
	}
}

// The chart may be installed in a namespace with other pods, such as kube-system. An empty selector
// would select all of them.
func TestTheNetworkPolicySelectsOnlyTheAgents(t *testing.T) {
	var policies []*networkingv1.NetworkPolicy
	agents := map[string]labels.Set{}
	for _, list := range objects(t) {
		for _, object := range list {
			switch o := object.(type) {
			case *networkingv1.NetworkPolicy:
				policies = append(policies, o)
			case *appsv1.DaemonSet:
				if o.Name != setUp {
					agents[o.Name] = o.Spec.Template.Labels
				}
			}
		}
	}
	if len(policies) != 1 || len(agents) != 2 {
		t.Fatalf("there are %d policies and %d agents", len(policies), len(agents))
	}
	selector, err := metav1.LabelSelectorAsSelector(&policies[0].Spec.PodSelector)
	if err != nil {
		t.Fatal(err)
	}
	for name, set := range agents {
		if !selector.Matches(set) {
			t.Errorf("it is not of %s, whose pods have %v", name, set)
		}
	}
	for _, other := range []labels.Set{nil, {"k8s-app": "kube-dns"},
		{"app.kubernetes.io/name": "gpuledger-setup"}} {
		if selector.Matches(other) {
			t.Errorf("it is of pods with %v, too", other)
		}
	}
}

// An agent that cannot work ends. A version that ends soon may replace a working one on the first
// node only. A deployment keeps its pods until new ones work.
func TestAnUpdateWaitsForAStablePod(t *testing.T) {
	seen := 0
	for _, list := range objects(t) {
		for _, object := range list {
			if d, is := object.(*appsv1.Deployment); is && d.Spec.Strategy.Type != "" {
				t.Errorf("deployment %s has the strategy %s", d.Name, d.Spec.Strategy.Type)
			}
			if set, is := object.(*appsv1.DaemonSet); is && set.Name != setUp {
				seen++
				if set.Spec.MinReadySeconds < 10 {
					t.Errorf("daemon set %s takes a pod for a good one after %d s", set.Name,
						set.Spec.MinReadySeconds)
				}
			}
		}
	}
	if seen != 2 {
		t.Errorf("there are %d daemon sets, want 2", seen)
	}
}
