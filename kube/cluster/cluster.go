// Package cluster reads a cluster's GPUs from the API alone: nodes, GPUs, claims and the pods that
// have them.
package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
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

// Node is a node with GPUs.
type Node struct {
	Name    string  `json:"name"`
	Address string  `json:"address,omitempty"`
	GPUs    []GPU   `json:"gpus"`
	Counted []Count `json:"counted,omitempty"` // of a device plugin, which does not show single GPUs
}

// GPU is a GPU or a MIG device, as its slices describe it.
type GPU struct {
	UUID      string       `json:"uuid"`
	Index     int64        `json:"index"` // for a MIG device the index of its GPU
	Profile   string       `json:"profile,omitempty"`
	Product   string       `json:"product,omitempty"`
	Health    string       `json:"health,omitempty"`
	Mode      string       `json:"mode,omitempty"` // of its claims
	Total     int64        `json:"total"`          // bytes
	Allocated int64        `json:"allocated"`
	Used      int64        `json:"used,omitempty"` // by processes, where the node publishes it
	Shares    []ClaimShare `json:"shares,omitempty"`

	// The modes that take new claims, each with the bytes that its claims can have in total.
	modes map[string]int64
	// The modes in which the node offers the GPU, also those that take no new claims now.
	offered []string
}

// ClaimShare is a claim's part of a GPU.
type ClaimShare struct {
	Namespace string   `json:"namespace"`
	Claim     string   `json:"claim,omitempty"`     // where the DRA driver has the node
	Container string   `json:"container,omitempty"` // where the device plugin has it
	Request   string   `json:"request,omitempty"`   // of a claim with several
	Pods      []string `json:"pods,omitempty"`
	Mode      string   `json:"mode"`
	Memory    int64    `json:"memory"` // bytes
	Compute   int64    `json:"compute,omitempty"`
}

// Count is a resource of a device plugin.
type Count struct {
	Resource  string `json:"resource"`
	Total     int64  `json:"total"`
	Allocated int64  `json:"allocated"`
}

// Read reads the nodes from the API. A cluster without dynamic resource allocation has only device
// plugins.
func Read(ctx context.Context, client kubernetes.Interface) ([]Node, error) {
	machines, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot list the nodes: %w", err)
	}
	published, err := offered(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("cannot list what the nodes have: %w", err)
	}
	claims, err := client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		claims = &resourceapi.ResourceClaimList{}
	} else if err != nil {
		return nil, fmt.Errorf("cannot list the claims: %w", err)
	}
	pods, err := client.CoreV1().Pods("").List(ctx,
		metav1.ListOptions{FieldSelector: "status.phase!=Succeeded,status.phase!=Failed"})
	if err != nil {
		return nil, fmt.Errorf("cannot list the pods: %w", err)
	}
	return build(machines.Items, published, claims.Items, pods.Items), nil
}

// offered returns the slices that the nodes have published.
func offered(ctx context.Context, client kubernetes.Interface) ([]resourceapi.ResourceSlice, error) {
	list, err := client.ResourceV1().ResourceSlices().List(ctx,
		metav1.ListOptions{FieldSelector: "spec.driver=" + kube.DriverName})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// build joins the objects of the API.
func build(machines []corev1.Node, published []resourceapi.ResourceSlice, claims []resourceapi.ResourceClaim,
	pods []corev1.Pod) []Node {
	var nodes []Node
	for _, machine := range machines {
		n := Node{Name: machine.Name, Address: address(machine), Counted: counted(machine, pods)}
		devices := devicesOf(machine.Name, published)
		for _, d := range devices {
			n.addDevice(d)
		}
		for _, claim := range claims {
			n.addClaim(claim, devices)
		}
		if text, found := machine.Annotations[nodestate.Annotation]; found && len(n.GPUs) == 0 {
			n.addState(text, pods)
		}
		if len(n.GPUs) == 0 && len(n.Counted) == 0 {
			continue
		}
		slices.SortFunc(n.GPUs, func(a, b GPU) int {
			return cmp.Or(cmp.Compare(a.Index, b.Index),
				cmp.Compare(a.UUID, b.UUID))
		})
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes
}

func address(machine corev1.Node) string {
	for _, a := range machine.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	return ""
}

// devicesOf returns the devices of the node's pool in the newest generation.
func devicesOf(node string, published []resourceapi.ResourceSlice) []resourceapi.Device {
	var devices []resourceapi.Device
	newest := int64(-1)
	for _, s := range published {
		if s.Spec.Pool.Name == node && s.Spec.Driver == kube.DriverName {
			newest = max(newest, s.Spec.Pool.Generation)
		}
	}
	for _, s := range published {
		if s.Spec.Pool.Name == node && s.Spec.Driver == kube.DriverName && s.Spec.Pool.Generation == newest {
			devices = append(devices, s.Spec.Devices...)
		}
	}
	return devices
}

// addDevice adds the GPU of a device. The device with the most memory shows the GPU's total.
func (n *Node) addDevice(d resourceapi.Device) {
	uuid, total := word(d, "uuid"), d.Capacity["memory"].Value
	i := slices.IndexFunc(n.GPUs, func(g GPU) bool { return g.UUID == uuid })
	if i < 0 {
		n.GPUs = append(n.GPUs, GPU{UUID: uuid, Index: *whole(d, "index"), Profile: word(d, "profile"),
			Product: word(d, "product"), Health: word(d, "health")})
		i = len(n.GPUs) - 1
	}
	n.GPUs[i].Total = max(n.GPUs[i].Total, total.Value())
	modes := modesOf(d)
	n.GPUs[i].offered = append(n.GPUs[i].offered, modes...)
	if !slices.ContainsFunc(d.Taints,
		func(t resourceapi.DeviceTaint) bool { return t.Effect != resourceapi.DeviceTaintEffectNone }) {
		if n.GPUs[i].modes == nil {
			n.GPUs[i].modes = map[string]int64{}
		}
		for _, mode := range modes {
			n.GPUs[i].modes[mode] = total.Value()
		}
	}
}

// modesOf returns the modes in which claims can have a device. A device for shares can also be had
// whole.
func modesOf(d resourceapi.Device) []string {
	modes := []string{word(d, "mode")}
	if a := d.Attributes["whole"]; a.BoolValue != nil && *a.BoolValue && modes[0] != exclusive {
		modes = append(modes, exclusive)
	}
	return modes
}

const exclusive = "exclusive"

// askedMode returns the mode that a request of an allocated claim has from its class or its own
// parameters; "": that of the device.
func askedMode(claim resourceapi.ResourceClaim, request string) string {
	main, _, _ := strings.Cut(request, "/")
	for _, c := range claim.Status.Allocation.Devices.Config {
		var parameters struct{ Mode string }
		if c.Opaque != nil && c.Opaque.Driver == kube.DriverName &&
			(len(c.Requests) == 0 || slices.Contains(c.Requests, request) ||
				slices.Contains(c.Requests, main)) &&
			json.Unmarshal(c.Opaque.Parameters.Raw, &parameters) == nil && parameters.Mode != "" {
			return plain(parameters.Mode)
		}
	}
	return ""
}

func word(d resourceapi.Device, name resourceapi.QualifiedName) string {
	if a := d.Attributes[name]; a.StringValue != nil {
		return plain(*a.StringValue)
	}
	return ""
}

func whole(d resourceapi.Device, name resourceapi.QualifiedName) *int64 {
	if a := d.Attributes[name]; a.IntValue != nil {
		return a.IntValue
	}
	return new(int64)
}

// addClaim adds a claim's shares of the node's GPUs.
func (n *Node) addClaim(claim resourceapi.ResourceClaim, devices []resourceapi.Device) {
	if claim.Status.Allocation == nil {
		return
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != kube.DriverName || result.Pool != n.Name {
			continue
		}
		i := slices.IndexFunc(devices, func(d resourceapi.Device) bool { return d.Name == result.Device })
		if i < 0 {
			continue // its GPU is gone
		}
		share := ClaimShare{Namespace: claim.Namespace, Claim: claim.Name,
			Mode: cmp.Or(askedMode(claim, result.Request), word(devices[i], "mode")), Pods: users(claim),
			Request: requestOf(claim, result)}
		amount, several := result.ConsumedCapacity["memory"]
		if !several {
			amount = devices[i].Capacity["memory"].Value
		}
		percent := result.ConsumedCapacity["compute"]
		share.Memory, share.Compute = amount.Value(), percent.Value()
		n.give(word(devices[i], "uuid"), share)
	}
}

// requestOf returns the request of an allocated device if its claim has several with devices of
// gpuledger. Each of them is a grant.
func requestOf(claim resourceapi.ResourceClaim, of resourceapi.DeviceRequestAllocationResult) string {
	name, _, _ := strings.Cut(of.Request, "/")
	for _, result := range claim.Status.Allocation.Devices.Results {
		if other, _, _ := strings.Cut(result.Request, "/"); result.Driver == of.Driver && other != name {
			return name
		}
	}
	return ""
}

// name returns the name of the claim, with the request if it has several.
func (s ClaimShare) name() string {
	if s.Request == "" {
		return s.Claim
	}
	return s.Claim + "/" + s.Request
}

func (n *Node) give(uuid string, share ClaimShare) {
	for i := range n.GPUs {
		if n.GPUs[i].UUID == uuid {
			n.GPUs[i].Mode = share.Mode
			n.GPUs[i].Allocated += share.Memory
			n.GPUs[i].Shares = append(n.GPUs[i].Shares, share)
		}
	}
}

func users(claim resourceapi.ResourceClaim) []string {
	var names []string
	for _, r := range claim.Status.ReservedFor {
		if r.Resource == "pods" {
			names = append(names, r.Name)
		}
	}
	return names
}

// counted returns the resources of gpuledger's device plugins.
func counted(machine corev1.Node, pods []corev1.Pod) []Count {
	var list []Count
	for _, name := range []corev1.ResourceName{"gpuledger.dev/gpu-memory", "gpuledger.dev/gpu",
		"aliyun.com/gpu-mem"} {
		total, found := machine.Status.Capacity[name]
		if !found || total.IsZero() {
			continue
		}
		c := Count{Resource: string(name), Total: total.Value()}
		for _, pod := range pods {
			if pod.Spec.NodeName == machine.Name {
				c.Allocated += limits(pod, name)
			}
		}
		list = append(list, c)
	}
	return list
}

// limits returns what a pod holds of a resource. That is the sum over its containers and sidecars.
// An init container with the sidecars before it may need more, and then that counts.
func limits(pod corev1.Pod, name corev1.ResourceName) int64 {
	var sum, sidecars, most int64
	for _, c := range pod.Spec.Containers {
		amount := c.Resources.Limits[name]
		sum += amount.Value()
	}
	for _, c := range pod.Spec.InitContainers {
		amount := c.Resources.Limits[name]
		most = max(most, sidecars+amount.Value())
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars += amount.Value()
		}
	}
	return max(sum+sidecars, most)
}
