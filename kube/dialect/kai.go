package dialect

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/placement"
)

// The annotations of KAI. One container of a pod has the share: the first one, or the one that the
// pod names.
const (
	kaiMemory    = "gpu-memory"
	kaiFraction  = "gpu-fraction"
	kaiDevices   = "gpu-fraction-num-devices"
	kaiContainer = "gpu-fraction-container-name"
	kaiPercent   = "gpu-sm-percentage"
)

// kaiRefused are annotations of KAI that gpuledger cannot follow, and why.
var kaiRefused = []struct{ key, why string }{
	{"gpu-memory.limit", "a share has one amount, which is both what it asks for and its limit"},
	{"gpu-fraction.limit", "a share has one amount, which is both what it asks for and its limit"},
	{"gpu-sm-cores", "gpuledger counts compute in percent of a GPU (gpu-sm-percentage)"},
	{"mps", "the node's label says in which mode its GPUs are"},
}

// Schedulers returns the schedulers that manifests in the configured dialects name.
func (c Config) Schedulers() (names []string) {
	if c.has(kai) {
		names = append(names, "kai-scheduler")
	}
	return names
}

// kaiAsk returns what a pod asks for a container by an annotation.
func kaiAsk(pod *corev1.Pod, container *corev1.Container, r Resource, m meaning) (a ask, is bool, err error) {
	text, found := pod.Annotations[r.Name]
	if !found || container.Name != kaiOwner(pod) {
		return a, false, nil
	}
	for _, refused := range kaiRefused {
		if pod.Annotations[refused.key] != "" {
			return a, false, fmt.Errorf("%s: %s", refused.key, refused.why)
		}
	}
	a = ask{name: r.Name, is: m, mode: r.Mode}
	if m.kind == annotatedMem {
		a.amount, err = strconv.ParseInt(text, 10, 64)
		if err != nil || a.amount < 1 {
			return a, false, fmt.Errorf("%s: %q is no amount of memory: want a whole number of %s", r.Name,
				grant.Printable(text), m.unit)
		}
		return a, true, nil
	}
	a.part, err = thousandths(text)
	if err != nil {
		return a, false, fmt.Errorf("%s: %w", r.Name, err)
	}
	return a, true, nil
}

// kaiOwner returns the name of the container that has the share.
func kaiOwner(pod *corev1.Pod) string {
	if name := pod.Annotations[kaiContainer]; name != "" {
		return name
	}
	if len(pod.Spec.Containers) == 0 {
		return ""
	}
	return pod.Spec.Containers[0].Name
}

// kaiNamesNone refuses a pod whose annotations are for a container that it does not have. It would
// start without a GPU.
func (c Config) kaiNamesNone(w placement.Wish, pod *corev1.Pod) error {
	for _, r := range c.Resources {
		if r.meaning().family != kai || pod.Annotations[r.Name] == "" {
			continue
		}
		for _, d := range w.Demands {
			if d.Container == kaiOwner(pod) {
				return nil
			}
		}
		return fmt.Errorf("%s is %q, and the pod has no such container", kaiContainer,
			grant.Printable(kaiOwner(pod)))
	}
	return nil
}

// kaiCompute enters the share of compute that the pod asks for.
func kaiCompute(d *placement.Demand, pod *corev1.Pod) error {
	text, found := pod.Annotations[kaiPercent]
	if !found {
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 100 {
		return fmt.Errorf("%s: want a percentage from 1 to 100, not %q", kaiPercent, grant.Printable(text))
	}
	d.Compute = n
	return nil
}

// thousandths reads a part of a GPU: more than 0 and less than 1, or a percentage. More digits than
// three are refused, because they would be rounded.
func thousandths(text string) (int, error) {
	bad := fmt.Errorf("%q is no part of a GPU: want a number between 0 and 1 with three digits at most, as "+
		"0.5, or a percentage, as 50%%", grant.Printable(text))
	if percent, is := strings.CutSuffix(text, "%"); is {
		n, err := strconv.ParseUint(percent, 10, 8)
		if err != nil || n < 1 || n > 99 {
			return 0, bad
		}
		return int(n) * 10, nil
	}
	before, digits, found := strings.Cut(text, ".")
	digits = strings.TrimRight(digits, "0")
	if !found || strings.Trim(before, "0") != "" || digits == "" || len(digits) > 3 {
		return 0, bad
	}
	n, err := strconv.ParseUint((digits + "000")[:3], 10, 16)
	if err != nil || n == 0 {
		return 0, bad
	}
	return int(n), nil
}
