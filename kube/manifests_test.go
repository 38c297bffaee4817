package kube

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/gpuledger/gpuledger/kube/dra"
)

// objects reads every manifest by the API's own types: what they do not know, or have twice, is an error.
func objects(t *testing.T) map[string][]runtime.Object {
	t.Helper()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	all := map[string][]runtime.Object{}
	err := filepath.WalkDir("manifests", func(path string, e fs.DirEntry, err error) error {
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

func TestManifestsAreWhatTheAPITakes(t *testing.T) {
	classes := map[string]bool{}
	for _, list := range objects(t) {
		for _, object := range list {
			if class, is := object.(*resourceapi.DeviceClass); is {
				classes[class.Name] = true
				for _, c := range class.Spec.Config {
					config, err := dra.ParseConfig(c.Opaque.Parameters.Raw)
					if err != nil || c.Opaque.Driver != dra.DriverName || class.Name != string(config.Mode)+"."+dra.DriverName || !strings.Contains(class.Spec.Selectors[0].CEL.Expression, `mode == "`+string(config.Mode)+`"`) {
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
						t.Errorf("%s asks for class %q, which no manifest makes", path, r.Exactly.DeviceClassName)
					}
				}
			}
		}
	}
}

func TestEveryManifestIsPartOfAKustomization(t *testing.T) {
	for _, dir := range []string{"base", "dra", "device-plugin"} {
		content, err := os.ReadFile(filepath.Join("manifests", dir, "kustomization.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var k struct {
			APIVersion string                          `json:"apiVersion"`
			Kind       string                          `json:"kind"`
			Resources  []string                        `json:"resources"`
			Images     []struct{ Name, NewTag string } `json:"images"`
		}
		if err := sigsyaml.UnmarshalStrict(content, &k); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
		files, err := filepath.Glob(filepath.Join("manifests", dir, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if name := filepath.Base(file); name != "kustomization.yaml" && !slices.Contains(k.Resources, name) {
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

// The agents must not be able to do more than they do: what is written here is what a reviewer agreed to.
func TestTheDriverMayDoNoMoreThanItDoes(t *testing.T) {
	allowed := map[string]string{"resourceslices": "create delete get list patch update watch", "resourceclaims": "get", "nodes": "get"}
	found := false
	for _, list := range objects(t) {
		for _, object := range list {
			switch o := object.(type) {
			case *rbacv1.ClusterRole:
				found = found || o.Name == "gpuledger-dra"
				for _, rule := range o.Rules {
					verbs := slices.Sorted(slices.Values(rule.Verbs))
					for _, resource := range rule.Resources {
						if o.Name == "gpuledger-dra" && strings.Join(verbs, " ") != allowed[resource] || slices.Contains(rule.Verbs, "*") || resource == "*" || resource == "secrets" {
							t.Errorf("role %s may %v %s", o.Name, verbs, resource)
						}
					}
				}
			case *appsv1.DaemonSet:
				c := o.Spec.Template.Spec.Containers[0].SecurityContext
				if c.Privileged != nil && *c.Privileged || *c.AllowPrivilegeEscalation || !slices.Contains(c.Capabilities.Drop, "ALL") || len(c.Capabilities.Add) > 0 {
					t.Errorf("daemon set %s has %+v", o.Name, c)
				}
			}
		}
	}
	if !found {
		t.Error("there is no role gpuledger-dra")
	}
}
