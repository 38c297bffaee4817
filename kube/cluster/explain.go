package cluster

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuledger/gpuledger/kube/dra"
)

// Explanation is what the API tells of one pod's GPUs.
type Explanation struct {
	Pod     string   `json:"pod"` // namespace/name
	Phase   string   `json:"phase"`
	Node    string   `json:"node,omitempty"`
	Waits   string   `json:"waits,omitempty"` // the scheduler's reason
	Claims  []Claim  `json:"claims,omitempty"`
	Counts  []string `json:"counts,omitempty"` // of a device plugin's resources: "main: 4 gpuledger.dev/gpu-memory"
	Reasons []string `json:"reasons,omitempty"`
}

// Claim is one of the pod's claims.
type Claim struct {
	Name      string  `json:"name"`
	Allocated bool    `json:"allocated"`
	Problem   string  `json:"problem,omitempty"`
	Lacks     string  `json:"lacks,omitempty"`  // what of it no node has
	Shares    []Share `json:"shares,omitempty"` // without the names
	GPUs      []int64 `json:"gpus,omitempty"`   // by index, as the shares
}

// Explain tells of a pod what it has, or what keeps it from that. Warnings among its events are told as they are: a refusal
// stands there in gpuledger's own words.
func Explain(ctx context.Context, client kubernetes.Interface, namespace, name string) (Explanation, error) {
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Explanation{}, fmt.Errorf("cannot explain: %w", err)
	}
	e := Explanation{Pod: namespace + "/" + name, Phase: string(pod.Status.Phase), Node: pod.Spec.NodeName, Counts: asked(pod)}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			e.Waits = c.Message
		}
	}
	nodes, err := Read(ctx, client)
	if err != nil {
		return e, err
	}
	for _, entry := range pod.Spec.ResourceClaims {
		claim, err := claimOf(ctx, client, pod, entry, nodes)
		if err != nil {
			return e, err
		}
		e.Claims = append(e.Claims, claim)
	}
	events, err := client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(pod.UID)})
	if err != nil {
		return e, fmt.Errorf("cannot list the pod's events: %w", err)
	}
	for _, event := range events.Items {
		if event.Type == corev1.EventTypeWarning && strings.Contains(event.Message, "gpuledger") && !slices.Contains(e.Reasons, event.Message) {
			e.Reasons = append(e.Reasons, event.Message)
		}
	}
	return e, nil
}

// asked are the resources of a device plugin that the pod's containers name.
func asked(pod *corev1.Pod) []string {
	var list []string
	for _, c := range append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...) {
		for name, amount := range c.Resources.Limits {
			if strings.HasPrefix(string(name), "gpuledger.dev/") || name == "aliyun.com/gpu-mem" {
				list = append(list, fmt.Sprintf("%s: %s %s", c.Name, amount.String(), name))
			}
		}
	}
	slices.Sort(list)
	return list
}

func claimOf(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, entry corev1.PodResourceClaim, nodes []Node) (Claim, error) {
	name := ""
	if entry.ResourceClaimName != nil {
		name = *entry.ResourceClaimName
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name == entry.Name && s.ResourceClaimName != nil {
			name = *s.ResourceClaimName
		}
	}
	if name == "" {
		return Claim{Name: entry.Name, Problem: "the claim is not made from its template yet"}, nil
	}
	claim, err := client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Claim{Name: name, Problem: "there is no claim of that name"}, nil
	}
	if err != nil {
		return Claim{}, fmt.Errorf("cannot read claim %s: %w", name, err)
	}
	c := Claim{Name: name, Allocated: claim.Status.Allocation != nil}
	for _, n := range nodes {
		for _, g := range n.GPUs {
			for _, s := range g.Shares {
				if s.Namespace == pod.Namespace && s.Claim == name {
					c.Shares, c.GPUs = append(c.Shares, s), append(c.GPUs, g.Index)
				}
			}
		}
	}
	if !c.Allocated {
		for _, r := range claim.Spec.Devices.Requests {
			if w, ours := wantOf(r); ours && c.Lacks == "" {
				c.Lacks = w.missing(nodes)
			}
		}
	}
	if c.Allocated && len(c.Shares) == 0 {
		c.Problem = "nothing of it is " + dra.DriverName + "'s, or its GPU is gone"
	}
	return c, nil
}

// Write tells the explanation to a person.
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
		for i, s := range c.Shares {
			text := fmt.Sprintf("claim %s has %s GiB of GPU %d in mode %s", c.Name, gib(s.Memory), c.GPUs[i], s.Mode)
			if s.Compute > 0 {
				text += fmt.Sprintf(", with %d%% of its compute", s.Compute)
			}
			fmt.Fprintln(w, text)
		}
	}
	for _, c := range e.Counts {
		fmt.Fprintln(w, "container", c, "by the device plugin")
	}
	if len(e.Claims) == 0 && len(e.Counts) == 0 {
		fmt.Fprintln(w, "it asks for no GPU through gpuledger")
	}
	if e.Waits != "" {
		fmt.Fprintln(w, "it waits:", plain(e.Waits))
	}
	for _, r := range e.Reasons {
		fmt.Fprintln(w, "event:", strings.ReplaceAll(plain(r), "\n", "\n  "))
	}
}
