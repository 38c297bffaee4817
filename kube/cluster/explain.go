package cluster

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuledger/gpuledger/kube"
	"github.com/gpuledger/gpuledger/kube/nodestate"
)

// Explanation is what the API knows of one pod's GPUs.
type Explanation struct {
	Pod    string  `json:"pod"` // namespace/name
	Phase  string  `json:"phase"`
	Node   string  `json:"node,omitempty"`
	Waits  string  `json:"waits,omitempty"` // the scheduler's reason
	Claims []Claim `json:"claims,omitempty"`
	// Of a device plugin's resources: "main: 4 gpuledger.dev/gpu-memory".
	Counts []string `json:"counts,omitempty"`
	// Of gpuledger's scheduler: "main is allocated 4 GiB of GPU-... in mode limit".
	Allocations []string `json:"allocations,omitempty"`
	Reasons     []string `json:"reasons,omitempty"`
	Unseen      []string `json:"unseen,omitempty"` // what the user may not read, and why
}

// Claim is one of the pod's claims.
type Claim struct {
	Name      string       `json:"name"`
	Allocated bool         `json:"allocated"`
	Problem   string       `json:"problem,omitempty"`
	Lacks     string       `json:"lacks,omitempty"`  // what no node has for the claim
	Shares    []ClaimShare `json:"shares,omitempty"` // without the names
	GPUs      []int64      `json:"gpus,omitempty"`   // by index, in the order of Shares

	// Devices replaces Shares if the slices cannot be read. It says what the allocation says: "6.5
	// GiB of gpu-...-limit on node-1".
	Devices []string `json:"devices,omitempty"`
}

// Explain says what a pod has, or what keeps it from having it. It copies warnings among the pod's
// events: a refusal appears there in gpuledger's own words. It reads the pod's namespace, the
// published slices and other claims. What the user may not read is left out and listed in Unseen.
func Explain(ctx context.Context, client kubernetes.Interface, namespace, name string) (Explanation, error) {
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Explanation{}, fmt.Errorf("cannot explain: %w", err)
	}
	e := Explanation{Pod: namespace + "/" + name, Phase: string(pod.Status.Phase), Node: pod.Spec.NodeName,
		Counts: asked(pod), Allocations: allocated(pod)}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			e.Waits = c.Message
		}
	}
	if err := e.readClaims(ctx, client, pod); err != nil {
		return e, err
	}
	events, err := client.CoreV1().Events(namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(pod.UID)})
	if err != nil {
		return e, e.unseen("the pod's events, where refusals stand", err)
	}
	for _, event := range events.Items {
		if event.Type == corev1.EventTypeWarning && strings.Contains(event.Message, "gpuledger") &&
			!slices.Contains(e.Reasons, event.Message) {
			e.Reasons = append(e.Reasons, event.Message)
		}
	}
	return e, nil
}

// claimsOf returns the pod's claims, with the one that the scheduler has made for the extended
// resources of its containers.
func claimsOf(pod *corev1.Pod) []corev1.PodResourceClaim {
	list := slices.Clone(pod.Spec.ResourceClaims)
	if made := pod.Status.ExtendedResourceClaimStatus; made != nil {
		list = append(list, corev1.PodResourceClaim{ResourceClaimName: &made.ResourceClaimName})
	}
	return list
}

// unseen records what the user may not read. It returns any other error.
func (e *Explanation) unseen(what string, err error) error {
	if !apierrors.IsForbidden(err) {
		return fmt.Errorf("cannot look at %s: %w", what, err)
	}
	e.Unseen = append(e.Unseen, fmt.Sprintf("%s: %v", what, err))
	return nil
}

// readClaims reads the pod's claims.
func (e *Explanation) readClaims(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	var own []resourceapi.ResourceClaim
	waits := false
	for _, entry := range claimsOf(pod) {
		c, claim, err := claimOf(ctx, client, pod, entry)
		if err != nil {
			if err := e.unseen("claim "+c.Name, err); err != nil {
				return err
			}
			c.Problem = "you may not read it"
		}
		own, e.Claims, waits = append(own, claim), append(e.Claims, c), waits || c.Problem == "" &&
			!c.Allocated
	}
	if !slices.ContainsFunc(e.Claims, func(c Claim) bool { return c.Problem == "" }) {
		return nil
	}
	published, err := offered(ctx, client)
	if err != nil {
		for i := range e.Claims {
			e.Claims[i].Devices = devicesIn(own[i])
		}
		return e.unseen("what the nodes offer", err)
	}
	for i := range e.Claims {
		e.Claims[i].addShares(own[i], build(poolsOf(published), published, own[i:i+1], nil))
	}
	if !waits {
		return nil
	}
	all, err := client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return e.unseen("the claims of all namespaces, which show what is free", err)
	}
	nodes := build(poolsOf(published), published, all.Items, nil)
	for i := range e.Claims {
		if c := &e.Claims[i]; c.Problem == "" && !c.Allocated {
			c.Lacks = lacks(own[i], nodes)
		}
	}
	return nil
}

// poolsOf returns the nodes that have published slices.
func poolsOf(published []resourceapi.ResourceSlice) []corev1.Node {
	var nodes []corev1.Node
	for _, s := range published {
		if !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == s.Spec.Pool.Name }) {
			nodes = append(nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.Spec.Pool.Name}})
		}
	}
	return nodes
}

// asked returns the resources of a device plugin that the pod's containers request.
func asked(pod *corev1.Pod) []string {
	var list []string
	for _, c := range append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...) {
		for name, amount := range c.Resources.Limits {
			if strings.HasPrefix(string(name), "gpuledger.dev/") && !ByClaim(pod, c.Name, name) ||
				name == "aliyun.com/gpu-mem" {
				list = append(list, fmt.Sprintf("%s: %s %s", c.Name, amount.String(), name))
			}
		}
	}
	slices.Sort(list)
	return list
}

// allocated returns what the scheduler has allocated to the pod's containers. It knows each GPU by
// its UUID.
func allocated(pod *corev1.Pod) []string {
	var list []string
	for _, a := range nodestate.AllocationsOf(pod) {
		for _, uuid := range a.GPUs {
			text := fmt.Sprintf("%s is allocated %s GiB of %s in mode %s", a.Container,
				gib(int64(a.Memory)), plain(uuid), a.Mode)
			if a.Mode == exclusive {
				text = fmt.Sprintf("%s is allocated %s in mode %s", a.Container, plain(uuid), a.Mode)
			}
			list = append(list, withCompute(text, int64(a.Compute)))
		}
	}
	return list
}

func withCompute(text string, percent int64) string {
	if percent > 0 {
		text += fmt.Sprintf(", with %d%% of its compute", percent)
	}
	return text
}

// ByClaim reports whether a container has an extended resource by a claim, and not from a device
// plugin.
func ByClaim(pod *corev1.Pod, container string, resource corev1.ResourceName) bool {
	made := pod.Status.ExtendedResourceClaimStatus
	return made != nil && slices.ContainsFunc(made.RequestMappings,
		func(m corev1.ContainerExtendedResourceRequest) bool {
			return m.ContainerName == container && m.ResourceName == string(resource)
		})
}

// claimOf reads one of the pod's claims. If it sets Problem, nothing more is known.
func claimOf(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod,
	entry corev1.PodResourceClaim) (Claim, resourceapi.ResourceClaim, error) {
	name := ""
	if entry.ResourceClaimName != nil {
		name = *entry.ResourceClaimName
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name == entry.Name && s.ResourceClaimName != nil {
			name = *s.ResourceClaimName
		}
	}
	var none resourceapi.ResourceClaim
	if name == "" {
		return Claim{Name: entry.Name, Problem: "the claim is not made from its template yet"}, none, nil
	}
	claim, err := client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Claim{Name: name, Problem: "there is no claim of that name"}, none, nil
	}
	if err != nil {
		return Claim{Name: name}, none, err
	}
	return Claim{Name: name, Allocated: claim.Status.Allocation != nil}, *claim, nil
}

// addShares adds a claim's shares of the nodes' GPUs.
func (c *Claim) addShares(claim resourceapi.ResourceClaim, nodes []Node) {
	for _, n := range nodes {
		for _, g := range n.GPUs {
			for _, s := range g.Shares {
				c.Shares, c.GPUs = append(c.Shares, s), append(c.GPUs, g.Index)
			}
		}
	}
	if c.Problem == "" && c.Allocated && len(c.Shares) == 0 {
		c.Problem = "nothing of it is " + kube.DriverName + "'s, or its GPU is gone"
	}
}

// devicesIn describes a claim's devices from its allocation alone.
func devicesIn(claim resourceapi.ResourceClaim) []string {
	if claim.Status.Allocation == nil {
		return nil
	}
	var list []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver != kube.DriverName {
			continue
		}
		text := fmt.Sprintf("%s on %s", r.Device, r.Pool)
		if amount, found := r.ConsumedCapacity["memory"]; found {
			text = fmt.Sprintf("%s GiB of %s", gib(amount.Value()), text)
			if askedMode(claim, r.Request) == exclusive {
				text += ", the whole GPU"
			}
		}
		list = append(list, text)
	}
	return list
}

// lacks says what no node has for a claim.
func lacks(claim resourceapi.ResourceClaim, nodes []Node) string {
	for _, r := range claim.Spec.Devices.Requests {
		if w, ours := wantOf(r); ours {
			if text := w.missing(nodes); text != "" {
				return text
			}
		}
	}
	return ""
}

// Write prints the explanation.
func (e Explanation) Write(w io.Writer) {
	where := ""
	if e.Node != "" {
		where = " on " + e.Node
	}
	fmt.Fprintf(w, "pod %s is %s%s\n", e.Pod, e.Phase, where)
	for _, c := range e.Claims {
		switch {
		case c.Problem != "":
			fmt.Fprintf(w, "claim %s: %s\n", c.Name, c.Problem)
		case c.Lacks != "":
			fmt.Fprintf(w, "claim %s is not allocated: %s\n", c.Name, c.Lacks)
		case !c.Allocated:
			fmt.Fprintf(w, "claim %s is not allocated\n", c.Name)
		}
		for _, d := range c.Devices {
			fmt.Fprintf(w, "claim %s has %s\n", c.Name, d)
		}
		for i, s := range c.Shares {
			fmt.Fprintln(w, withCompute(fmt.Sprintf("claim %s has %s GiB of GPU %d in mode %s", s.name(),
				gib(s.Memory), c.GPUs[i], s.Mode), s.Compute))
		}
	}
	for _, c := range e.Counts {
		fmt.Fprintln(w, "container", c, "by the device plugin")
	}
	for _, a := range e.Allocations {
		fmt.Fprintln(w, "container", a)
	}
	if len(e.Claims) == 0 && len(e.Counts) == 0 && len(e.Allocations) == 0 {
		fmt.Fprintln(w, "it has no claim and no allocation of gpuledger")
	}
	if e.Waits != "" {
		fmt.Fprintln(w, "it waits:", plain(e.Waits))
	}
	for _, r := range e.Reasons {
		fmt.Fprintln(w, "event:", strings.ReplaceAll(plain(r), "\n", "\n  "))
	}
	for _, u := range e.Unseen {
		fmt.Fprintln(w, "not looked at:", plain(u))
	}
}
