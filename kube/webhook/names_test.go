package webhook

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestClaimsOfOnePodHaveDifferentNames, also where the pod has a claim with such a name.
func TestClaimsOfOnePodHaveDifferentNames(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpuledger-0"}}
	for _, last := range []string{"a", "b", "c"} {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: strings.Repeat("x", 62) + last,
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
				"gpuledger.dev/gpu-memory": resource.MustParse("1")}}})
	}
	c, err := Rules{Claims: true}.changeOf(pod)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{"gpuledger-0": true}
	for _, o := range c.patch {
		if claim, is := o.Value.(corev1.PodResourceClaim); is {
			if names[claim.Name] {
				t.Errorf("two claims are named %s", claim.Name)
			}
			names[claim.Name] = true
		}
	}
	if len(names) != 4 {
		t.Errorf("%v", names)
	}
}
