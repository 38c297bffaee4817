package main

import (
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	helmchart "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/core"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	manifests = "../../../kube/manifests/"
	namespace = "gpuledger-system"
)

// rendered is what `helm install` would send to an empty cluster, by Helm's own engine, for values
// in YAML.
func rendered(t *testing.T, into, kubernetes,
	values string) ([]manifest, error) {
	t.Helper()
	return renderedWith(t, having(t), into, kubernetes, values)
}

// renderedWith is rendered for a cluster that has objects already. Without one (nil) it is what
// `helm template` prints.
func renderedWith(t *testing.T, has *cluster, into, kubernetes,
	values string) ([]manifest, error) {
	t.Helper()
	files, err := renderedFiles(t, has, into, kubernetes, values)
	if err != nil {
		return nil, err
	}
	var documents []string
	for name, text := range files {
		if filepath.Ext(name) == ".yaml" {
			documents = append(documents, text)
		}
	}
	// An API server has the kinds of the Prometheus operator only with its definitions.
	documents = slices.DeleteFunc(strings.Split(strings.Join(documents, "\n---\n"), "\n---\n"),
		func(document string) bool { return strings.Contains(document, "monitoring.coreos.com/") })
	return validated([]byte(strings.Join(documents, "\n---\n")))
}

// renderedFiles are the chart's files as Helm renders them, with its notes.
func renderedFiles(t *testing.T, has *cluster, into, kubernetes,
	values string) (map[string]string, error) {
	t.Helper()
	log.SetOutput(io.Discard) // Helm logs each link in files/
	chart, err := loader.LoadDir(manifests + "helm")
	if err != nil {
		t.Fatal(err)
	}
	var given map[string]any
	if err := yaml.UnmarshalStrict([]byte(values), &given); err != nil {
		t.Fatal(err)
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	version, err := chartutil.ParseKubeVersion(kubernetes)
	if err != nil {
		t.Fatal(err)
	}
	capabilities.KubeVersion = *version
	if slices.Contains([]string{"30", "31", "32", "33"}, version.Minor) {
		capabilities.APIVersions = slices.DeleteFunc(slices.Clone(capabilities.APIVersions),
			func(v string) bool { return v == "resource.k8s.io/v1" })
	}
	all, err := chartutil.ToRenderValues(chart, given, chartutil.ReleaseOptions{
		Name: "gpuledger", Namespace: into, IsInstall: true}, capabilities)
	if err != nil {
		return nil, err
	}
	render := engine.Engine{Strict: true}.Render
	if has != nil {
		has.versions = capabilities.APIVersions
		render = func(c *helmchart.Chart, v chartutil.Values) (map[string]string, error) {
			return engine.RenderWithClientProvider(c, v, has)
		}
	}
	return render(chart, all)
}

// kustomized is what `kubectl apply -k` sends.
func kustomized(t *testing.T, which string) []manifest {
	t.Helper()
	options := krusty.MakeDefaultOptions()
	all, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), manifests+which)
	if err != nil {
		t.Fatal(err)
	}
	text, err := all.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	objects, err := validated(text)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// hooks are what Helm makes only at a certain time, apart from the rest.
func hooks(all []manifest) (rest, hooks []manifest) {
	for _, o := range all {
		named, err := meta.Accessor(o.value)
		if err != nil {
			panic(err)
		}
		if named.GetAnnotations()["helm.sh/hook"] != "" {
			hooks = append(hooks, o)
		} else {
			rest = append(rest, o)
		}
	}
	return rest, hooks
}

// byName has an order that does not count taken out.
func byName(objects []manifest) map[string]manifest {
	all := map[string]manifest{}
	for _, o := range objects {
		all[o.kind+"/"+o.name] = o
	}
	return all
}

func TestTheChartAndTheKustomizationAreOne(t *testing.T) {
	for which, values := range map[string]string{"cluster-dra": "agent: dra",
		"cluster-device-plugin": "agent: device-plugin", "dra": "{agent: dra, setup: {enabled: false}}",
		"device-plugin":     "{agent: device-plugin, setup: {enabled: false}}",
		"cluster-scheduler": "{agent: device-plugin, scheduler: {enabled: true}}",
		"scheduler":         "{agent: device-plugin, setup: {enabled: false}, scheduler: {enabled: true}}",
		"dra+webhook":       "{agent: dra, setup: {enabled: false}, webhook: {enabled: true}}"} {
		t.Run(which, func(t *testing.T) {
			all, err := rendered(t, namespace, "v1.36.2", values)
			chart, _ := hooks(all)
			if err != nil {
				t.Fatal(err)
			}
			got, want := byName(chart), map[string]manifest{}
			for _, o := range chart {
				if pods := podsOf(o); pods != nil {
					pods.Annotations = nil // the hash of their files, which kustomize does not make
				}
			}
			for part := range strings.SplitSeq(which, "+") {
				maps.Copy(want, byName(kustomized(t, part)))
			}
			delete(want, "Namespace/"+namespace) // Helm makes it before, for its own record
			for name, w := range want {
				if g, found := got[name]; !found {
					t.Errorf("the chart has no %s", name)
				} else if !reflect.DeepEqual(g.value, w.value) {
					t.Errorf("%s differs:\nchart         %s\nkustomization %s", name,
						asYAML(t, g), asYAML(t, w))
				}
			}
			for name := range got {
				if _, found := want[name]; !found {
					t.Errorf("the kustomization has no %s", name)
				}
			}
		})
	}
}

// docs/kubernetes.md has administrators bind roles, whatever the agent.
func TestTheRolesOfTheDocumentationAreThere(t *testing.T) {
	text, err := os.ReadFile("../../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	roles := map[string]bool{}
	for _, match := range regexp.MustCompile("role `(gpuledger-[a-z]+)`|--clusterrole=([a-z-]+)").
		FindAllStringSubmatch(string(text), -1) {
		roles[match[1]+match[2]] = true
	}
	if len(roles) < 2 {
		t.Fatalf("found %v", roles)
	}
	for _, agent := range []string{"dra", "device-plugin"} {
		all, err := rendered(t, namespace, "v1.36.2", "agent: "+agent)
		if err != nil {
			t.Fatal(err)
		}
		for role := range roles {
			if byName(all)["ClusterRole/"+role].value == nil {
				t.Errorf("agent %s: there is no role %s", agent, role)
			}
		}
	}
}

// podsOf returns the template of an object's pods; nil: it makes none.
func podsOf(o manifest) *core.PodTemplateSpec {
	switch value := o.value.(type) {
	case *apps.Deployment:
		return &value.Spec.Template
	case *apps.DaemonSet:
		return &value.Spec.Template
	}
	return nil
}

func asYAML(t *testing.T, o manifest) string {
	t.Helper()
	text, err := yaml.Marshal(o.value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEveryManifestIsWhatAnAPIServerTakes(t *testing.T) {
	files, err := filepath.Glob(manifests + "[^h]*/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("found %v, %v", files, err)
	}
	more, err := filepath.Glob("../../kubernetes/*.yaml")
	if err != nil || len(more) == 0 {
		t.Fatalf("found %v, %v", more, err)
	}
	for _, file := range append(files, more...) {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		text, err := os.ReadFile(file)
		if err == nil {
			_, err = validated(text)
		}
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// What is wrong in a way that only the server's own validation sees.
func TestAnAPIServerWouldNotTakeIt(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(manifests + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for name, c := range map[string]struct{ text, from, to, want string }{
		"a field that there is not":          {read("dra/daemonset.yaml"), "hostPID", "hostPids", "unknown field"},
		"a field twice":                      {read("dra/daemonset.yaml"), "hostPID: true", "hostPID: true\n      hostPID: true", "already set"},
		"a selector of other pods":           {read("dra/daemonset.yaml"), "matchLabels: {app.kubernetes.io/name: gpuledger-dra}", "matchLabels: {app: other}", "does not match"},
		"a mount of no volume":               {read("dra/daemonset.yaml"), "{name: registry, mountPath", "{name: registri, mountPath", "Not found"},
		"an expression that does not parse":  {read("dra/policy.yaml"), "variables.node != ''", "variables.node !== ''", "compilation failed"},
		"an expression of an unknown name":   {read("dra/policy.yaml"), "variables.node != ''", "variable.node != ''", "undeclared reference"},
		"an expression that is no condition": {read("dra/classes.yaml"), `device.driver == "gpuledger.dev" &&`, `device.driver == 1 &&`, "compilation failed"},
		"a kind that we do not ship":         {read("base/namespace.yaml"), "kind: Namespace", "kind: Secret", "kind"},
	} {
		if changed := strings.Replace(c.text, c.from, c.to, 1); changed == c.text {
			t.Errorf("%s: there is no %q any more", name, c.from)
		} else if _, err := validated([]byte(changed)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// agentOf is the agent's daemon set among objects, and its container.
func agentOf(t *testing.T, objects []manifest) (*apps.DaemonSet, core.Container) {
	t.Helper()
	for _, o := range objects {
		if set, is := o.value.(*apps.DaemonSet); is && !strings.HasPrefix(o.name, "gpuledger-setup") {
			return set, set.Spec.Template.Spec.Containers[0]
		}
	}
	t.Fatal("there is no daemon set")
	return nil, core.Container{}
}

func TestValuesReachTheirPlaces(t *testing.T) {
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]func(t *testing.T, objects []manifest, set *apps.DaemonSet, c core.Container){
		"registry.yaml": func(t *testing.T, objects []manifest, set *apps.DaemonSet, c core.Container) {
			spec := set.Spec.Template.Spec
			if c.Image != "registry.example.com/team/gpuledger-kube@sha256:"+strings.Repeat("0a", 32) ||
				c.ImagePullPolicy != core.PullIfNotPresent || spec.ImagePullSecrets[0].Name != "registry" ||
				spec.NodeSelector["pool"] != "gpu" || len(spec.NodeSelector) != 1 &&
				spec.NodeSelector["gpuledger.dev/node"] != "shared" ||
				spec.Tolerations[0].Key != "nvidia.com/gpu" || spec.PriorityClassName != "" {
				t.Errorf("got image %q (%s), %+v", c.Image, c.ImagePullPolicy, spec)
			}
			setup := byName(objects)["DaemonSet/gpuledger-setup"].value.(*apps.DaemonSet)
			install := setup.Spec.Template.Spec.InitContainers[0]
			if install.Image != "registry.example.com/team/gpuledger-setup@sha256:"+strings.Repeat("0b",
				32) ||
				!slices.Equal(install.Args, []string{"install", "--engine=crio",
					"--cluster=/cluster/cluster.toml"}) ||
				setup.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue() != 3 ||
				setup.Spec.Template.Spec.Tolerations[0].Key != "nvidia.com/gpu" {
				t.Errorf("the set-up is %+v", setup.Spec)
			}
		},
		"gpushare.yaml": func(t *testing.T, objects []manifest, _ *apps.DaemonSet, c core.Container) {
			if want := []string{"device-plugin", "--resources=gpushare", "--unit=256MiB", "--mode=timeslice",
				"--kubelet-dir=/var/lib/k0s/kubelet"}; !slices.Equal(c.Args, want) {
				t.Errorf("got the arguments %q, want %q", c.Args, want)
			}
			if len(objects) != 3 {
				t.Errorf("got %d objects, want the daemon set and two roles", len(objects))
			}
			if !slices.ContainsFunc(c.VolumeMounts, func(m core.VolumeMount) bool {
				return m.MountPath == "/var/lib/k0s/kubelet/device-plugins" && !m.ReadOnly
			}) ||
				!slices.ContainsFunc(c.VolumeMounts, func(m core.VolumeMount) bool {
					return m.MountPath == "/run/other_root/runc" && m.ReadOnly
				}) {
				t.Errorf("got the mounts %+v", c.VolumeMounts)
			}
		},
		"bare.yaml": func(t *testing.T, objects []manifest, _ *apps.DaemonSet, c core.Container) {
			var names []string
			for name := range byName(objects) {
				names = append(names, name)
			}
			slices.Sort(names)
			if got := strings.Join(names, " "); got != "ClusterRole/gpuledger-dra "+
				"ClusterRole/gpuledger-explain ClusterRole/gpuledger-viewer "+
				"ClusterRoleBinding/gpuledger-dra DaemonSet/gpuledger-dra ServiceAccount/gpuledger-dra" {
				t.Errorf("got %s", got)
			}
			if c.Resources.Limits.Memory().String() != "512Mi" {
				t.Errorf("got %+v", c.Resources)
			}
		},
	}
	if len(files) != len(all) {
		t.Errorf("there are %v, and %d of them are looked at", files, len(all))
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			objects, err := rendered(t, namespace, "v1.36.2", string(text))
			if err != nil {
				t.Fatal(err)
			}
			set, c := agentOf(t, objects)
			all[filepath.Base(file)](t, objects, set, c)
		})
	}
}

// The policy names the driver's account: in another namespace it has to be that one's.
func TestAnotherNamespace(t *testing.T) {
	objects, err := rendered(t, "gpus", "v1.36.2", "kinds: [{name: h100, nodeSelector: {gpu: h100}}]")
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range byName(objects) {
		if text := asYAML(t, o); strings.Contains(text, namespace) {
			t.Errorf("%s names %s:\n%s", name, namespace, text)
		}
	}
	if text := asYAML(t,
		byName(objects)["ValidatingAdmissionPolicy/slices.gpuledger.dev"]); !strings.Contains(text,
		"system:serviceaccount:gpus:gpuledger-dra") {
		t.Errorf("got\n%s", text)
	}
}

// Without a cluster the agent that it has is not known. By the version alone, the agent would
// change under running pods when the cluster's version does.
func TestWithoutAClusterTheAgentHasToBeNamed(t *testing.T) {
	for _, version := range []string{"v1.35.3", "v1.36.2"} {
		_, err := renderedWith(t, nil, namespace, version, "{}")
		if err == nil || !strings.Contains(err.Error(), "set agent to dra or device-plugin") {
			t.Errorf("%s: got %v", version, err)
		}
		if _, err := renderedWith(t, nil, namespace, version, "agent: device-plugin"); err != nil {
			t.Errorf("%s: %v", version, err)
		}
	}
}

func TestBadValuesGetASentence(t *testing.T) {
	for values, want := range map[string]string{
		"agent: both":                                    "at '/agent': value must be one of 'auto', 'dra', 'device-plugin'",
		"agnet: dra":                                     "additional properties 'agnet' not allowed",
		"devicePlugin: {unit: 100KB}":                    "at '/devicePlugin/unit': '100KB' does not match pattern",
		"devicePlugin: {mode: exclusive}":                "at '/devicePlugin/mode': value must be one of '', 'limit', 'timeslice', 'mps'",
		"devicePlugin: {resources: [cores]}":             "at '/devicePlugin/resources/0': value must be one of 'memory', 'gpu', 'gpushare'",
		"devicePlugin: {resources: []}":                  "at '/devicePlugin/resources': minItems: got 0, want 1",
		"image: {digest: 0123}":                          "at '/image/digest'",
		"image: {pullPolicy: Sometimes}":                 "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'",
		"runtimeRoots: [/run]":                           "at '/runtimeRoots/0': '/run' does not match pattern",
		"kubeletDir: var/lib/kubelet":                    "at '/kubeletDir': 'var/lib/kubelet' does not match pattern",
		"nodeSelector: null":                             "missing property 'nodeSelector'",
		"tolerations: [{operater: Exists}]":              "additional properties 'operater' not allowed",
		"policy: {mode: off}":                            "at '/policy/mode'",
		"policy: {mod: report}":                          "additional properties 'mod' not allowed",
		"policy: {exempt: [{}]}":                         "at '/policy/exempt/0': minProperties: got 0, want 1",
		"config: {state_dir: /x}":                        "additional properties 'state_dir' not allowed",
		"config: {audit: {keep: 0}}":                     "at '/config/audit/keep': minimum: got 0, want 1",
		"config: {pool: [{modes: [limit]}]}":             "at '/config/pool/0': missing property 'gpus'",
		"kinds: [{name: a}]":                             "at '/kinds/0': missing property 'nodeSelector'",
		"kinds: [{name: default, nodeSelector: {a: b}}]": "at '/kinds/0/name': 'not' failed",
		"kinds: [{name: a, nodeSelector: {a: b, c: d}}]": "at '/kinds/0/nodeSelector': maxProperties",
		"setup: {engine: podman}":                        "at '/setup/engine': value must be one of",
		"setup: {maxUnavailable: 0%}":                    "at '/setup/maxUnavailable'",
		"uninstall: {timeout: soon}":                     "at '/uninstall/timeout'",
		"metrics: {podMonitor: true}":                    "at '/metrics/enabled': value must be true",
		"resourceQuota: -1":                              "at '/resourceQuota': minimum: got -1, want 0",
		"networkPolicy: 'yes'":                           "at '/networkPolicy': got string, want boolean",
		"dra: {classes: true, polices: true}":            "additional properties 'polices' not allowed",
	} {
		if _, err := rendered(t, namespace, "v1.36.0", values); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", values, err, want)
		}
	}
	if _, err := rendered(t, namespace, "v1.34.2", "agent: dra"); err == nil ||
		!strings.Contains(err.Error(), "agent dra needs Kubernetes 1.35 or later, and this cluster has "+
			"v1.34.2: set agent to device-plugin") {
		t.Errorf("an older cluster: got %v", err)
	}
	if _, err := rendered(t, namespace, "v1.34.2", "agent: device-plugin"); err != nil {
		t.Errorf("the device plugin on an older cluster: %v", err)
	}
}
