package nodestate

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// The annotations of a pod that a node adopts as grants, each with the name of a container behind
// it. Only the scheduler writes them.
const (
	KeyGPUs    = "gpuledger.dev/gpus."    // UUIDs, separated by commas
	KeyMemory  = "gpuledger.dev/memory."  // over all of the GPUs; none in mode exclusive
	KeyCompute = "gpuledger.dev/compute." // percent of each GPU
	KeyMode    = "gpuledger.dev/mode."
)

// Allocation is what a container has by its pod's annotations.
type Allocation struct {
	Container string
	Init      bool // it ends before the next one starts
	GPUs      []string
	Memory    grant.Bytes // on each GPU
	Compute   int
	Mode      grant.Mode
}

// AllocationsOf reads the annotations of a pod, in the order in which its containers start. What
// cannot be read is no allocation: the node refuses it, too.
func AllocationsOf(pod *corev1.Pod) (all []Allocation) {
	if len(pod.Annotations) == 0 {
		return nil
	}
	for _, c := range pod.Spec.InitContainers {
		stays := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		if a, is := AllocationOf(pod, c.Name); is {
			a.Init = !stays
			all = append(all, a)
		}
	}
	for _, c := range pod.Spec.Containers {
		if a, is := AllocationOf(pod, c.Name); is {
			all = append(all, a)
		}
	}
	return all
}

// AllocationOf reads the annotations of one container, and does not set Init.
func AllocationOf(pod *corev1.Pod, container string) (a Allocation, is bool) {
	text, is := pod.Annotations[KeyGPUs+container]
	if !is {
		return a, false
	}
	a = Allocation{Container: container, GPUs: strings.Split(text, ","), Mode: grant.Limit}
	if mode, err := grant.ParseMode(pod.Annotations[KeyMode+container]); err == nil {
		a.Mode = mode
	}
	if memory, err := grant.ParseBytes(pod.Annotations[KeyMemory+container]); err == nil {
		a.Memory = memory / grant.Bytes(len(a.GPUs))
	}
	a.Compute, _ = strconv.Atoi(pod.Annotations[KeyCompute+container])
	return a, true
}
