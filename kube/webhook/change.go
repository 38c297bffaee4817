package webhook

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/dialect"
	"github.com/gpuledger/gpuledger/kube/placement"
)

// AskedFor is the annotation that says what a pod asked for before it got claims. The templates of
// the claims are made from it.
const AskedFor = "gpuledger.dev/asked-for"

// A pod has a line for each review that gave it claims. The API server has a second one if another
// webhook has changed the pod after the first.
const (
	betweenLines = "; "
	maxLines     = 4
)

// Rules say what becomes of pods.
type Rules struct {
	Dialect dialect.Config
	// Claims says that pods get claims. Otherwise they are for the scheduler.
	Claims bool
	// Scheduler is the scheduler of pods that name none; "": they stay with the cluster's.
	Scheduler string
	// Replaced are schedulers of which a pod with claims has no need.
	Replaced []string
}

// change is what is done to a pod.
type change struct {
	templates []*resourceapi.ResourceClaimTemplate
	patch     []operation
	warnings  []string // shown to the user
}

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

func (c *change) add(path string, value any) {
	c.patch = append(c.patch, operation{Op: "add", Path: path, Value: value})
}
func (c *change) remove(path string) { c.patch = append(c.patch, operation{Op: "remove", Path: path}) }

// key writes a key of a map as a part of a path.
func key(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// Defaulted is the scheduler of pods that name none.
const Defaulted = corev1.DefaultSchedulerName

// changeOf returns what becomes of a new pod. The error is for its user.
func (r Rules) changeOf(pod *corev1.Pod) (c change, err error) {
	wish, asks, err := r.Dialect.Wish(pod)
	if err != nil || !asks || mirror(pod) {
		return c, err
	}
	if pod.Spec.NodeName != "" {
		return c, errOwnNode
	}
	if r.Claims {
		return r.claims(pod, wish)
	}
	if r.Scheduler != "" && (pod.Spec.SchedulerName == "" || pod.Spec.SchedulerName == Defaulted) {
		c.add("/spec/schedulerName", r.Scheduler)
	}
	return c, nil
}

// refusalOf returns why a pod cannot be, or nil. It is asked about the pod as it will be.
func (r Rules) refusalOf(pod *corev1.Pod) error {
	_, asks, err := r.Dialect.Wish(pod)
	switch {
	case err != nil || !asks || mirror(pod):
		return err
	case r.Claims:
		return errors.New("the pod asks for GPUs by names that should have become claims: another " +
			"admission webhook has added them afterwards")
	case pod.Spec.NodeName != "":
		return errOwnNode
	}
	return nil
}

// errOwnNode is the refusal of a pod that is past all schedulers.
var errOwnNode = errors.New("the pod asks for GPUs and names its node, so no scheduler chooses its GPUs: " +
	"use a nodeSelector instead of nodeName")

// mirror reports whether a pod stands for a static pod, which runs already. A static pod can have
// no claim, and no scheduler places it. The node refuses it.
func mirror(pod *corev1.Pod) bool {
	_, is := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return is
}

// claims replaces what the containers ask for with claims. Each container has a claim of its own.
// An init container that asks for the same as a container with which it never runs uses that one's.
func (r Rules) claims(pod *corev1.Pod, wish placement.Wish) (c change, err error) {
	var made []madeClaim
	names := map[string]bool{}
	for _, p := range pod.Spec.ResourceClaims {
		names[p.Name] = true
	}
	of := map[string]string{} // the claim of a container
	for _, d := range inOrder(wish.Demands) {
		if i := slices.IndexFunc(made, func(m madeClaim) bool {
			return d.Init && same(m.for_, d) && !runsBeside(m.for_, d, wish.Demands)
		}); i >= 0 {
			of[d.Container] = made[i].name
			continue
		}
		t, err := template(pod.Namespace, d, wish, grant.Bytes(r.Dialect.PartOf))
		if err != nil {
			return change{}, fmt.Errorf("container %q cannot have a claim: %w", grant.Printable(d.Container),
				err)
		}
		m := madeClaim{name: claimName(names, d.Container), for_: d, template: t.Name}
		made, of[d.Container] = append(made, m), m.name
		if !slices.ContainsFunc(c.templates,
			func(o *resourceapi.ResourceClaimTemplate) bool { return o.Name == t.Name }) {
			c.templates = append(c.templates, t)
		}
	}
	r.patchContainers(&c, "/spec/initContainers", pod.Spec.InitContainers, of)
	r.patchContainers(&c, "/spec/containers", pod.Spec.Containers, of)
	if pod.Spec.ResourceClaims == nil {
		c.add("/spec/resourceClaims", []any{})
	}
	for _, m := range made {
		c.add("/spec/resourceClaims/-", corev1.PodResourceClaim{Name: m.name,
			ResourceClaimTemplateName: &m.template})
	}
	r.patchAnnotations(&c, pod)
	if slices.Contains(r.Replaced, pod.Spec.SchedulerName) {
		c.add("/spec/schedulerName", Defaulted)
	}
	return c, nil
}

type madeClaim struct {
	name, template string
	for_           placement.Demand
}

// inOrder returns the demands with those of init containers last, because they may use the claims
// of the others.
func inOrder(all []placement.Demand) []placement.Demand {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b placement.Demand) int {
		switch {
		case a.Init == b.Init:
			return 0
		case a.Init:
			return 1
		}
		return -1
	})
	return all
}

// runsBeside reports whether a container runs while an init container does: it is one that runs on
// and has started before. Init containers that end run one after another, and all others later.
func runsBeside(other, init placement.Demand, inPod []placement.Demand) bool {
	at := func(d placement.Demand) int {
		return slices.IndexFunc(inPod, func(o placement.Demand) bool { return o.Container == d.Container })
	}
	return !other.Init && at(other) < at(init)
}

// same reports whether two containers ask for the same.
func same(a, b placement.Demand) bool {
	a.Container, a.Init = b.Container, b.Init
	return a == b
}

// claimName returns a name that the pod's claims do not have yet, and adds it to them.
func claimName(taken map[string]bool, container string) string {
	name := "gpu-" + container
	for n := 0; len(name) > 63 || taken[name]; n++ {
		name = fmt.Sprintf("gpuledger-%d", n)
	}
	taken[name] = true
	return name
}

// patchContainers removes the configured names from the containers, and adds the claims.
func (r Rules) patchContainers(c *change, path string, containers []corev1.Container, of map[string]string) {
	for i := range containers {
		at := fmt.Sprintf("%s/%d/resources", path, i)
		for _, name := range r.Dialect.Uses(&containers[i]) {
			if _, found := containers[i].Resources.Limits[corev1.ResourceName(name)]; found {
				c.remove(at + "/limits/" + key(name))
			}
			if _, found := containers[i].Resources.Requests[corev1.ResourceName(name)]; found {
				c.remove(at + "/requests/" + key(name))
			}
		}
		claim, found := of[containers[i].Name]
		switch {
		case !found:
		case containers[i].Resources.Limits == nil && containers[i].Resources.Requests == nil &&
			containers[i].Resources.Claims == nil:
			c.add(at, corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: claim}}})
		case containers[i].Resources.Claims == nil:
			c.add(at+"/claims", []corev1.ResourceClaim{{Name: claim}})
		default:
			c.add(at+"/claims/-", corev1.ResourceClaim{Name: claim})
		}
	}
}

// patchAnnotations removes the annotations that have become claims, and notes what the pod asked
// for.
func (r Rules) patchAnnotations(c *change, pod *corev1.Pod) {
	if pod.Annotations == nil {
		c.add("/metadata/annotations", map[string]string{})
	}
	for _, name := range r.Dialect.Annotations() {
		if _, found := pod.Annotations[name]; found {
			c.remove("/metadata/annotations/" + key(name))
		}
	}
	asked := r.Dialect.AskedFor(pod)
	all := asked
	if len(r.templatesOf(pod)) > 0 { // of a review before
		all = pod.Annotations[AskedFor] + betweenLines + asked
	}
	c.add("/metadata/annotations/"+key(AskedFor), all)
	names := map[string]bool{}
	for _, t := range c.templates {
		names[t.Name] = true
	}
	c.warnings = append(c.warnings, fmt.Sprintf("gpuledger: %s became claims of %s", grant.Printable(asked),
		strings.Join(slices.Sorted(maps.Keys(names)), ", ")))
}

// templatesOf returns the templates that a pod names, as far as they are what it asked for. It
// reads that as a review did. So a user who writes the annotation gets no more than by asking.
func (r Rules) templatesOf(pod *corev1.Pod) (all []*resourceapi.ResourceClaimTemplate) {
	lines := strings.SplitN(pod.Annotations[AskedFor], betweenLines, maxLines+1)
	if lines[0] == "" || len(lines) > maxLines {
		return nil
	}
	for _, line := range lines {
		asking := r.Dialect.Asking(pod, line)
		if asking == nil {
			continue
		}
		delete(asking.Annotations, AskedFor) // it is read
		c, err := r.changeOf(asking)
		if err != nil {
			continue
		}
		for _, t := range c.templates {
			if namesTemplate(pod, t.Name) {
				all = append(all, t)
			}
		}
	}
	return all
}

// namesTemplate reports whether a claim of a pod is to be made from a template.
func namesTemplate(pod *corev1.Pod, template string) bool {
	return slices.ContainsFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool {
		return c.ResourceClaimTemplateName != nil && *c.ResourceClaimTemplateName == template
	})
}
