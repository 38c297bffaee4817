package dialect

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Uses returns by which of the configured resource names a container asks for GPUs, also with an
// amount of 0, sorted.
func (c Config) Uses(container *corev1.Container) (names []string) {
	for _, o := range c.Offers() {
		_, limited := container.Resources.Limits[corev1.ResourceName(o.Name)]
		_, requested := container.Resources.Requests[corev1.ResourceName(o.Name)]
		if limited || requested {
			names = append(names, o.Name)
		}
	}
	slices.Sort(names)
	return names
}

// AskedFor says in one line what a pod asks for by which names.
func (c Config) AskedFor(pod *corev1.Pod) string {
	var all []string
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, name := range c.Uses(&list[i]) {
				q, found := list[i].Resources.Limits[corev1.ResourceName(name)]
				if !found {
					q = list[i].Resources.Requests[corev1.ResourceName(name)]
				}
				all = append(all, fmt.Sprintf("%s: %s=%s", list[i].Name, name, q.String()))
			}
		}
	}
	for _, key := range c.Annotations() {
		if value, found := pod.Annotations[key]; found {
			all = append(all, fmt.Sprintf("%s: %s=%s", kaiOwner(pod), key, value))
		}
	}
	return strings.Join(all, ", ")
}

// Amount reads an amount of a resource from a text that anybody may have written. It takes 30
// characters and powers of ten of two digits. Kubernetes writes no more: 19 digits before the point
// of a number and 9 behind it, a sign and a unit. Its Quantity reads and writes longer ones in
// minutes, such as 1e-2147483647.
func Amount(text string) (resource.Quantity, error) {
	power := strings.IndexAny(text, "eE")
	if len(text) > 30 || power >= 0 && len(text)-power > len("e+99") {
		return resource.Quantity{}, errors.New("an amount of a resource has too many characters")
	}
	return resource.ParseQuantity(text)
}

// Asking returns the part of a pod that Wish reads, with what a line of AskedFor says in place of
// what the pod asks for. It returns nil if the line is none of AskedFor, as a user may have written
// it.
func (c Config) Asking(pod *corev1.Pod, line string) *corev1.Pod {
	asking, noted := Readable(pod), c.Annotations()
	for _, key := range noted {
		delete(asking.Annotations, key)
	}
	containers := map[string]*corev1.Container{}
	for _, list := range [][]corev1.Container{asking.Spec.InitContainers, asking.Spec.Containers} {
		for i := range list {
			containers[list[i].Name] = &list[i]
		}
	}
	for item := range strings.SplitSeq(line, ", ") {
		owner, ask, _ := strings.Cut(item, ": ")
		name, amount, said := strings.Cut(ask, "=")
		container := containers[owner]
		if !said || container == nil {
			return nil
		}
		if slices.Contains(noted, name) {
			metav1.SetMetaDataAnnotation(&asking.ObjectMeta, name, amount)
			continue
		}
		q, err := Amount(amount)
		if err != nil {
			return nil
		}
		if container.Resources.Limits == nil {
			container.Resources.Limits = corev1.ResourceList{}
		}
		container.Resources.Limits[corev1.ResourceName(name)] = q
	}
	return asking
}

// Readable returns what Wish reads of a pod, without the resources of its containers, and with its
// claims.
func Readable(pod *corev1.Pod) *corev1.Pod {
	meta := pod.ObjectMeta
	meta.ManagedFields = nil
	part := &corev1.Pod{ObjectMeta: *meta.DeepCopy()}
	part.Spec.NodeName, part.Spec.ResourceClaims = pod.Spec.NodeName, pod.Spec.ResourceClaims
	for _, c := range pod.Spec.InitContainers {
		part.Spec.InitContainers = append(part.Spec.InitContainers,
			corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy})
	}
	for _, c := range pod.Spec.Containers {
		part.Spec.Containers = append(part.Spec.Containers, corev1.Container{Name: c.Name})
	}
	return part
}
