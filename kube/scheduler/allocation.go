package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/placement"
)

// The annotations of a pod that a node adopts as grants, each with the name of a container behind a
// dot. Only the scheduler writes them.
const (
	prefix     = "gpuledger.dev/"
	keyGPUs    = prefix + "gpus."    // UUIDs, separated by commas
	keyMemory  = prefix + "memory."  // over all of the GPUs; none in mode exclusive
	keyCompute = prefix + "compute." // percent of each GPU
	keyMode    = prefix + "mode."
)

// annotationsOf writes the choices that were made on a node.
func annotationsOf(n *placement.Node, choices []placement.Choice) map[string]string {
	all := map[string]string{}
	for _, c := range choices {
		uuids := make([]string, len(c.GPUs))
		for i, g := range c.GPUs {
			uuids[i] = n.GPUs[g].UUID
		}
		slices.Sort(uuids)
		all[keyGPUs+c.Container] = strings.Join(uuids, ",")
		all[keyMode+c.Container] = string(c.Mode)
		if c.Mode != grant.Exclusive {
			all[keyMemory+c.Container] = (c.Memory * grant.Bytes(len(uuids))).String()
		}
		if c.Compute > 0 {
			all[keyCompute+c.Container] = strconv.Itoa(c.Compute)
		}
	}
	return all
}

// maxKey is the most bytes of an annotation's key behind its domain, in the API.
const maxKey = 63

// nameTooLong returns why a container's name gives no keys of annotations. The API server takes
// such keys with a binding, and then refuses each later change of the pod, also its kubelet's.
func nameTooLong(w *placement.Wish) error {
	for _, d := range w.Demands {
		longest := keyMode
		switch {
		case d.Compute > 0:
			longest = keyCompute
		case d.Mode != grant.Exclusive:
			longest = keyMemory
		}
		if most := maxKey - len(longest) + len(prefix); len(d.Container) > most {
			return fmt.Errorf("the name of container %q is too long for the annotation that allocates it a "+
				"GPU (%sNAME): give it a name of at most %d characters", grant.Printable(d.Container),
				longest, most)
		}
	}
	return nil
}

// unwritable returns why the API would not take a pod with more annotations; nil: it would.
func unwritable(pod *corev1.Pod, more map[string]string) error {
	all := map[string]string{}
	maps.Copy(all, pod.Annotations)
	maps.Copy(all, more)
	return validation.ValidateAnnotations(all, field.NewPath("metadata", "annotations")).ToAggregate()
}

// statesAllocation returns an annotation of a pod by which it states its own allocation; "": it has
// none.
func statesAllocation(pod *corev1.Pod) string {
	found := ""
	for key := range pod.Annotations {
		for _, ours := range []string{keyGPUs, keyMemory, keyCompute, keyMode} {
			if strings.HasPrefix(key, ours) && (found == "" || key < found) {
				found = key
			}
		}
	}
	return found
}

// allocation is what a container has by its pod's annotations.
type allocation struct {
	container string
	init      bool // it ends before the next one starts
	gpus      []string
	memory    grant.Bytes // on each GPU
	compute   int
	mode      grant.Mode
}

// allocationsOf reads the annotations of a pod, in the order in which its containers start. What
// cannot be read is no allocation: the node refuses it, too.
func allocationsOf(pod *corev1.Pod) (all []allocation) {
	if len(pod.Annotations) == 0 {
		return nil
	}
	for _, c := range pod.Spec.InitContainers {
		stays := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		if a, is := allocationOf(pod, c.Name); is {
			a.init = !stays
			all = append(all, a)
		}
	}
	for _, c := range pod.Spec.Containers {
		if a, is := allocationOf(pod, c.Name); is {
			all = append(all, a)
		}
	}
	return all
}

func allocationOf(pod *corev1.Pod, container string) (a allocation, is bool) {
	text, is := pod.Annotations[keyGPUs+container]
	if !is {
		return a, false
	}
	a = allocation{container: container, gpus: strings.Split(text, ","), mode: grant.Limit}
	if mode, err := grant.ParseMode(pod.Annotations[keyMode+container]); err == nil {
		a.mode = mode
	}
	if memory, err := grant.ParseBytes(pod.Annotations[keyMemory+container]); err == nil {
		a.memory = memory / grant.Bytes(len(a.gpus))
	}
	a.compute, _ = strconv.Atoi(pod.Annotations[keyCompute+container])
	return a, true
}
