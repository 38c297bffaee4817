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
	"github.com/gpuledger/gpuledger/kube/nodestate"
	"github.com/gpuledger/gpuledger/kube/placement"
)

// prefix begins the keys of our annotations and labels.
const prefix = "gpuledger.dev/"

// annotationsOf writes the choices that were made on a node.
func annotationsOf(n *placement.Node, choices []placement.Choice) map[string]string {
	all := map[string]string{}
	for _, c := range choices {
		uuids := make([]string, len(c.GPUs))
		for i, g := range c.GPUs {
			uuids[i] = n.GPUs[g].UUID
		}
		slices.Sort(uuids)
		all[nodestate.KeyGPUs+c.Container] = strings.Join(uuids, ",")
		all[nodestate.KeyMode+c.Container] = string(c.Mode)
		if c.Mode != grant.Exclusive {
			all[nodestate.KeyMemory+c.Container] = (c.Memory * grant.Bytes(len(uuids))).String()
		}
		if c.Compute > 0 {
			all[nodestate.KeyCompute+c.Container] = strconv.Itoa(c.Compute)
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
		longest := nodestate.KeyMode
		switch {
		case d.Compute > 0:
			longest = nodestate.KeyCompute
		case d.Mode != grant.Exclusive:
			longest = nodestate.KeyMemory
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
		for _, ours := range []string{nodestate.KeyGPUs, nodestate.KeyMemory, nodestate.KeyCompute,
			nodestate.KeyMode} {
			if strings.HasPrefix(key, ours) && (found == "" || key < found) {
				found = key
			}
		}
	}
	return found
}
