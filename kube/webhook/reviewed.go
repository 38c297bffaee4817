package webhook

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuledger/gpuledger/kube/dialect"
)

// reviewed is what is read of a review's pod. A whole one has many more amounts, which cost much to
// read if a caller has made them for that.
type reviewed struct {
	Metadata struct {
		Labels          map[string]string       `json:"labels"`
		Annotations     map[string]string       `json:"annotations"`
		OwnerReferences []metav1.OwnerReference `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		NodeName       string                    `json:"nodeName"`
		SchedulerName  string                    `json:"schedulerName"`
		ResourceClaims []corev1.PodResourceClaim `json:"resourceClaims"`
		InitContainers []reviewedContainer       `json:"initContainers"`
		Containers     []reviewedContainer       `json:"containers"`
	} `json:"spec"`
}

type reviewedContainer struct {
	Name          string                         `json:"name"`
	RestartPolicy *corev1.ContainerRestartPolicy `json:"restartPolicy"`
	Resources     struct {
		Limits   amounts                `json:"limits"`
		Requests amounts                `json:"requests"`
		Claims   []corev1.ResourceClaim `json:"claims"`
	} `json:"resources"`
}

type amounts map[corev1.ResourceName]amount

// amount is read by dialect.Amount.
type amount struct{ resource.Quantity }

func (a *amount) UnmarshalJSON(text []byte) (err error) {
	if string(text) != "null" {
		a.Quantity, err = dialect.Amount(strings.Trim(string(text), `"`))
	}
	return err
}

func (all amounts) list() corev1.ResourceList {
	if all == nil {
		return nil
	}
	list := corev1.ResourceList{}
	for name, a := range all {
		list[name] = a.Quantity
	}
	return list
}

func containersOf(all []reviewedContainer) (list []corev1.Container) {
	for _, c := range all {
		list = append(list, corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy,
			Resources: corev1.ResourceRequirements{Limits: c.Resources.Limits.list(),
				Requests: c.Resources.Requests.list(), Claims: c.Resources.Claims}})
	}
	return list
}

func (r *reviewed) pod(namespace string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: r.Metadata.Labels,
		Annotations: r.Metadata.Annotations, OwnerReferences: r.Metadata.OwnerReferences},
		Spec: corev1.PodSpec{NodeName: r.Spec.NodeName, SchedulerName: r.Spec.SchedulerName,
			ResourceClaims: r.Spec.ResourceClaims, InitContainers: containersOf(r.Spec.InitContainers),
			Containers: containersOf(r.Spec.Containers)}}
}
