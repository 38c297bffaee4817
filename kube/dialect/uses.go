package dialect

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
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
