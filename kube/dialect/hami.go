package dialect

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/placement"
)

// hamiRefused are annotations of HAMi that gpuledger cannot follow, and why.
var hamiRefused = []struct{ key, why string }{
	{"nvidia.com/nouse-gputype", "gpuledger selects products, and excludes none: name those that can be used"},
	{"nvidia.com/use-gpuuuid", "gpuledger's scheduler chooses the GPU"},
	{"nvidia.com/nouse-gpuuuid", "gpuledger's scheduler chooses the GPU"},
}

// hamiPreferences reads the annotations of HAMi that choose GPUs. They concern a pod with HAMi's
// names, and say nothing about others.
func hamiPreferences(w *placement.Wish, pod *corev1.Pod) error {
	for _, r := range hamiRefused {
		if pod.Annotations[r.key] != "" {
			return fmt.Errorf("%s: %s", r.key, r.why)
		}
	}
	if bind := pod.Annotations["nvidia.com/numa-bind"]; bind != "" && bind != "false" {
		return fmt.Errorf("nvidia.com/numa-bind: gpuledger's scheduler does not see the topology of a node")
	}
	for _, key := range []string{"hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy"} {
		if err := policy(w, key, pod.Annotations[key]); err != nil {
			return err
		}
	}
	if text := pod.Annotations["nvidia.com/use-gputype"]; text != "" && w.Products == nil {
		w.Products = items(text)
	}
	mode := grant.Mode("")
	switch text := pod.Annotations["nvidia.com/vgpu-mode"]; text {
	case "":
		return nil
	case "hami-core":
		mode = grant.Limit
	case "mps":
		mode = grant.MPS
	default:
		return fmt.Errorf("nvidia.com/vgpu-mode: want hami-core or mps, not %q", grant.Printable(text))
	}
	for i := range w.Demands {
		if w.Demands[i].Mode == "" {
			w.Demands[i].Mode = mode
		}
	}
	return nil
}
