// Command manifests reads Kubernetes manifests as strictly as an API server with --validate=strict does: every document must be of a kind that
// it knows, and every field one of that kind's. It prints kind and name of each.
package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// kinds are what we ship, by apiVersion and kind.
var kinds = map[string]func() metav1.Object{
	"v1 Namespace":                func() metav1.Object { return new(corev1.Namespace) },
	"v1 ServiceAccount":           func() metav1.Object { return new(corev1.ServiceAccount) },
	"apps/v1 DaemonSet":           func() metav1.Object { return new(appsv1.DaemonSet) },
	"node.k8s.io/v1 RuntimeClass": func() metav1.Object { return new(nodev1.RuntimeClass) },
}

func main() {
	for _, path := range os.Args[1:] {
		if err := check(path); err != nil {
			fmt.Fprintf(os.Stderr, "manifests: %s: %v\n", path, err)
			os.Exit(1)
		}
	}
}

func check(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			return err
		}
		make := kinds[kind.APIVersion+" "+kind.Kind]
		if make == nil {
			return fmt.Errorf("%s %s is no kind that it may have", kind.APIVersion, kind.Kind)
		}
		object := make()
		if err := yaml.UnmarshalStrict(document, object); err != nil {
			return err
		}
		if object.GetName() == "" {
			return fmt.Errorf("a %s has no name", kind.Kind)
		}
		if set, is := object.(*appsv1.DaemonSet); is {
			if err := selects(set); err != nil {
				return err
			}
		}
		fmt.Println(strings.ToLower(kind.Kind) + "/" + object.GetName())
	}
	return nil
}

// selects: the API server refuses a set whose selector does not choose its own pods, or that names a volume it has not.
func selects(set *appsv1.DaemonSet) error {
	for key, value := range set.Spec.Selector.MatchLabels {
		if set.Spec.Template.Labels[key] != value {
			return fmt.Errorf("the selector of %s does not choose its pods", set.Name)
		}
	}
	volumes := map[string]bool{}
	for _, volume := range set.Spec.Template.Spec.Volumes {
		volumes[volume.Name] = true
	}
	for _, container := range append(set.Spec.Template.Spec.InitContainers, set.Spec.Template.Spec.Containers...) {
		for _, mount := range container.VolumeMounts {
			if !volumes[mount.Name] {
				return fmt.Errorf("container %s mounts %s, which is no volume", container.Name, mount.Name)
			}
		}
	}
	return nil
}
