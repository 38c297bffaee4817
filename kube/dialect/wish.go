package dialect

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/placement"
)

// maxGPUs bounds the GPUs of one container. No node has more.
const maxGPUs = 1024

// The scheduler compares each of these with each GPU of each node, again and again while the pod
// waits, and other pods wait for that. So a pod may not have as many as fit into it.
const (
	maxAsking   = 64 // containers that ask for GPUs
	maxProducts = 32
)

// Wish returns what a pod asks for. asks is false if it asks for nothing by the configured names.
// The error is a sentence for the user: what the pod asks for cannot be had.
func (c Config) Wish(pod *corev1.Pod) (wish placement.Wish, asks bool, err error) {
	if c.Resources == nil && c.NVIDIA == "" {
		if err := c.Ready(); err != nil {
			return wish, false, err
		}
	}
	for i := range pod.Spec.InitContainers {
		container := &pod.Spec.InitContainers[i]
		ends := container.RestartPolicy == nil ||
			*container.RestartPolicy != corev1.ContainerRestartPolicyAlways
		if err := c.add(&wish, pod, container, ends); err != nil {
			return placement.Wish{}, true, err
		}
	}
	for i := range pod.Spec.Containers {
		if err := c.add(&wish, pod, &pod.Spec.Containers[i], false); err != nil {
			return placement.Wish{}, true, err
		}
	}
	if err := c.kaiNamesNone(wish, pod); err != nil {
		return placement.Wish{}, true, err
	}
	if len(wish.Demands) == 0 {
		return wish, false, nil
	}
	if err := c.preferences(&wish, pod); err != nil {
		return placement.Wish{}, true, err
	}
	return wish, true, nil
}

// add adds what a container asks for.
func (c Config) add(wish *placement.Wish, pod *corev1.Pod, container *corev1.Container, ends bool) error {
	asks, err := c.asks(pod, container)
	if err != nil || len(asks) == 0 {
		return refusal(container, err)
	}
	d, err := asks.demand(pod)
	if err != nil {
		return refusal(container, err)
	}
	if len(wish.Demands) == maxAsking {
		return fmt.Errorf("more than %d containers of the pod ask for GPUs: have several pods", maxAsking)
	}
	if d.Mode == grant.Exclusive { // it has all the memory of a GPU, which has to be large enough
		wish.AtLeast, d.Memory = max(wish.AtLeast, d.Memory), 0
	}
	d.Container, d.Init = container.Name, ends
	wish.Demands = append(wish.Demands, d)
	return nil
}

func refusal(container *corev1.Container, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("container %q cannot have what it asks for: %w", grant.Printable(container.Name), err)
}

// ask is one name that a container uses, with its amount.
type ask struct {
	name   string
	is     meaning
	mode   grant.Mode
	amount int64
	share  shared // of kind replicas
	part   int    // of kind annotatedPart: thousandths
}

// asks is all that a container asks for.
type asks []ask

// asks returns the names that a container uses.
func (c Config) asks(pod *corev1.Pod, container *corev1.Container) (all asks, err error) {
	for _, r := range c.Resources {
		if c.replicated(r.Name) {
			continue
		}
		amount, err := limit(container, r.Name)
		if err != nil {
			return nil, err
		}
		if amount > 0 {
			all = append(all, ask{name: r.Name, is: r.meaning(), mode: r.Mode, amount: amount})
		}
	}
	for _, s := range c.sharing {
		amount, err := limit(container, s.offered())
		if err != nil {
			return nil, err
		}
		if amount > 0 {
			all = append(all, ask{name: s.offered(), is: meaning{family: nvidia, kind: replicas},
				mode: s.mode, amount: amount, share: s})
		}
	}
	for _, r := range c.Resources {
		if m := r.meaning(); m.family == kai {
			one, is, err := kaiAsk(pod, container, r, m)
			if err != nil {
				return nil, err
			}
			if is {
				all = append(all, one)
			}
		}
	}
	if err := c.foreign(container, all); err != nil {
		return nil, err
	}
	return all, all.oneDialect()
}

// limit returns a container's limit of a resource, or what it requests where it has no limit. The
// API server wants both to be the same, but the webhook comes before that check.
func limit(container *corev1.Container, name string) (int64, error) {
	if !strings.Contains(name, "/") {
		return 0, nil // an annotation
	}
	q, found := container.Resources.Limits[corev1.ResourceName(name)]
	if !found {
		q, found = container.Resources.Requests[corev1.ResourceName(name)]
	}
	if !found {
		return 0, nil
	}
	amount, whole := q.AsInt64()
	if !whole || amount < 0 {
		return 0, fmt.Errorf("%s: %s is no whole number", name, grant.Printable(q.String()))
	}
	return amount, nil
}

// unsupported are resources of a dialect that gpuledger cannot give, and why.
var unsupported = []struct {
	family    family
	name, why string
}{
	{hami, "nvidia.com/priority", "gpuledger has no priorities of tasks on a GPU"},
	{aliyun, "aliyun.com/gpu-count", "the number of GPUs is a label of the pod, not a limit"},
}

// foreign refuses resources of a configured dialect that gpuledger cannot give.
func (c Config) foreign(container *corev1.Container, all asks) error {
	for _, u := range unsupported {
		if amount, err := limit(container, u.name); c.has(u.family) && (amount > 0 || err != nil) {
			return fmt.Errorf("%s: %s", u.name, u.why)
		}
	}
	return nil
}

// oneDialect refuses names of several dialects. Who wrote them meant one of them, and which is
// unknown. HAMi counts GPUs by the name of NVIDIA's plugin.
func (all asks) oneDialect() error {
	of := nothing
	first := ""
	for _, a := range all {
		switch {
		case of == nothing, of == nvidia && a.is.family == hami && !all.have(replicas):
			of, first = a.is.family, a.name
		case a.is.family == of, of == hami && a.is.family == nvidia && a.is.kind == gpus:
		default:
			return fmt.Errorf("it uses %s of %s and %s of %s: a container uses one dialect", first, of,
				a.name, a.is.family)
		}
	}
	return nil
}

func (all asks) have(k kind) bool {
	return slices.ContainsFunc(all, func(a ask) bool { return a.is.kind == k })
}

// one returns the name of a kind. A kind is there once, unless the configuration has two names for
// it and the container uses both.
func (all asks) one(k ...kind) (ask, bool, error) {
	var found []ask
	for _, a := range all {
		if slices.Contains(k, a.is.kind) {
			found = append(found, a)
		}
	}
	switch len(found) {
	case 0:
		return ask{}, false, nil
	case 1:
		return found[0], true, nil
	}
	return ask{}, false, fmt.Errorf("%s and %s say the same in two ways: use one of them", found[0].name,
		found[1].name)
}

// demand turns the names of a container into what it is to get.
func (all asks) demand(pod *corev1.Pod) (placement.Demand, error) {
	d := placement.Demand{GPUs: 1}
	size, sized, err := all.one(memoryInAll, memoryEach, percentEach, replicas, annotatedMem, annotatedPart)
	if err != nil {
		return d, err
	}
	cards, counted, err := all.one(gpus)
	if err != nil {
		return d, err
	}
	percent, computes, err := all.one(compute)
	if err != nil {
		return d, err
	}
	if counted {
		if cards.amount > maxGPUs {
			return d, fmt.Errorf("%s: %d GPUs are more than a node has", cards.name, cards.amount)
		}
		d.GPUs = int(cards.amount)
	}
	switch {
	case sized && counted && cards.is.family != nvidia:
		return d, fmt.Errorf("%s is whole GPUs, and %s a share: ask for one of them", cards.name, size.name)
	case sized:
		if err := size.fill(&d, pod); err != nil {
			return d, err
		}
	case counted && !computes:
		d.Mode = grant.Exclusive
		return d, nil
	case counted && cards.is.family != nvidia:
		return d, fmt.Errorf("%s is whole GPUs, and %s a share of one: ask for memory with it", cards.name,
			percent.name)
	case percent.is.family != hami:
		return d, fmt.Errorf("%s is a share of compute, and no memory is named with it", percent.name)
	}
	if computes {
		if percent.amount > 100 {
			return d, fmt.Errorf("%s: %d is no percentage of a GPU: want 1 to 100", percent.name,
				percent.amount)
		}
		if d.GPUs > 1 && percent.is.family == aliyun {
			return d, fmt.Errorf("%s over several GPUs: its documentation has no shares of compute there",
				percent.name)
		}
		if percent.is.family == hami && percent.amount == 100 {
			// HAMi's scheduler takes a GPU without other pods for it, and adds none later
			return placement.Demand{GPUs: d.GPUs, Memory: d.Memory, Mode: grant.Exclusive}, nil
		}
		d.Compute = int(percent.amount)
		if d.Mode == "" {
			d.Mode = percent.mode
		}
	}
	return d, nil
}

// fill enters how much of each GPU it is.
func (a ask) fill(d *placement.Demand, pod *corev1.Pod) error {
	d.Mode = a.mode
	if a.is.unit != 0 && a.amount > int64(grant.Bytes(1)<<62/a.is.unit) {
		return fmt.Errorf("%s: %d is more memory than there is", a.name, a.amount)
	}
	switch a.is.kind {
	case memoryInAll:
		key := countKey[a.is.family]
		count, err := countOf(pod, key)
		if err != nil {
			return err
		}
		if a.amount%int64(count) != 0 {
			return fmt.Errorf("%s: %d over %s: %d is no whole number for each GPU: ask for a multiple of %d",
				a.name, a.amount, key, count, count)
		}
		d.GPUs, d.Memory = count, grant.Bytes(a.amount)*a.is.unit/grant.Bytes(count)
	case memoryEach:
		d.Memory = grant.Bytes(a.amount) * a.is.unit
	case percentEach:
		if a.amount > 100 {
			return fmt.Errorf("%s: %d is no percentage: want 1 to 100", a.name, a.amount)
		}
		d.Part = int(a.amount) * 10
	case replicas:
		return a.shares(d)
	case annotatedMem, annotatedPart:
		count, err := countOf(pod, kaiDevices)
		if err != nil {
			return err
		}
		d.GPUs, d.Part = count, a.part
		if a.is.kind == annotatedMem {
			d.Memory = grant.Bytes(a.amount) * a.is.unit
		}
		return kaiCompute(d, pod)
	}
	return nil
}

// shares enters shares of NVIDIA's plugin. Each is of another GPU, as a grant has each GPU once.
// That plugin takes each share of the GPU with the fewest shares taken (internal/rm/allocate.go),
// so two can be of one GPU. By its README they promise no more time than one.
func (a ask) shares(d *placement.Demand) error {
	switch {
	case a.amount > 1 && a.share.one:
		return fmt.Errorf("%s: the configuration of NVIDIA's device plugin allows one for a container "+
			"(failRequestsGreaterThanOne)", a.name)
	case a.amount > maxGPUs:
		return fmt.Errorf("%s: %d GPUs are more than a node has", a.name, a.amount)
	}
	d.GPUs, d.Part = int(a.amount), a.share.part()
	if d.Mode == grant.MPS {
		d.Compute = 100 / a.share.replicas
	}
	return nil
}

// countKey is the label or annotation by which a dialect says over how many GPUs memory is.
var countKey = map[family]string{ours: "gpuledger.dev/gpu-count", aliyun: "aliyun.com/gpu-count"}

// countOf returns the number of GPUs that a label or an annotation of the pod names; 1 without one.
func countOf(pod *corev1.Pod, key string) (int, error) {
	count, found := pod.Labels[key]
	if note, is := pod.Annotations[key]; is {
		if found && note != count {
			return 0, fmt.Errorf("%s: the label is %q and the annotation is %q", key, grant.Printable(count),
				grant.Printable(note))
		}
		count, found = note, true
	}
	if !found {
		return 1, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 || n > maxGPUs {
		return 0, fmt.Errorf("%s: %q is no number of GPUs", key, grant.Printable(count))
	}
	return n, nil
}

// The annotations of a pod that say how its GPUs are chosen.
const (
	Placement = "gpuledger.dev/placement"        // binpack or spread
	Apart     = "gpuledger.dev/spread-replicas"  // true, or the name of an application
	Product   = "gpuledger.dev/gpu-product"      // parts of names, separated by commas
	AtLeast   = "gpuledger.dev/gpu-memory-total" // the least memory that each GPU has in all, with a unit
)

// preferences reads how the GPUs are to be chosen.
func (c Config) preferences(w *placement.Wish, pod *corev1.Pod) error {
	if err := policy(w, Placement, pod.Annotations[Placement]); err != nil {
		return err
	}
	if text := pod.Annotations[Product]; text != "" {
		w.Products = items(text)
	}
	if text := pod.Annotations[AtLeast]; text != "" {
		size, err := grant.ParseBytes(text)
		if err != nil {
			return fmt.Errorf("%s: %w", AtLeast, err)
		}
		w.AtLeast = max(w.AtLeast, size)
	}
	switch app := pod.Annotations[Apart]; app {
	case "", "false":
	case "true":
		owner := metav1.GetControllerOf(pod)
		if owner == nil {
			return fmt.Errorf("%s is true, and the pod belongs to no controller: name the application "+
				"instead", Apart)
		}
		w.App = string(owner.UID)
	default:
		w.App = pod.Namespace + "/" + app
	}
	if c.has(hami) {
		if err := hamiPreferences(w, pod); err != nil {
			return err
		}
	}
	if len(w.Products) > maxProducts {
		return fmt.Errorf("the pod names %d products of GPUs, more than %d", len(w.Products), maxProducts)
	}
	return nil
}

// policy enters a placement policy. Two that differ are refused.
func policy(w *placement.Wish, key, value string) error {
	switch p := placement.Policy(value); p {
	case "":
	case placement.Binpack, placement.Spread:
		if w.Policy != "" && w.Policy != p {
			return fmt.Errorf("%s is %s, and another annotation of the pod is %s: gpuledger chooses nodes "+
				"and GPUs in the same way", key, p, w.Policy)
		}
		w.Policy = p
	default:
		return fmt.Errorf("%s: want binpack or spread, not %q", key, grant.Printable(value))
	}
	return nil
}

func items(text string) (all []string) {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			all = append(all, item)
		}
	}
	return all
}
