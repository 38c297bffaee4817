package scheduler

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodestate"
	"github.com/gpuledger/gpuledger/kube/placement"
)

// A node that is given back gets this label (docs/kubernetes.md).
const (
	labelNode = prefix + "node"
	removed   = "removed"
)

// The labels of a node that choose how its GPUs are filled. Ours wins over that of ACK.
const (
	labelPolicy  = prefix + "placement"
	labelACKFill = "ack.node.gpu.placement"
)

// published is a node as its object shows it.
type published struct {
	node    placement.Node // without what is on its way to it
	adopted map[string]bool
	offers  corev1.ResourceList // what its kubelet can give out of extended resources
}

// readNode reads a node's object. A node without the annotation is none of ours. offered are the
// resources that the device plugin of such a node offers to its kubelet.
func readNode(object *corev1.Node, fallback placement.Policy, offered []string) (p published, ours bool) {
	text, ours := object.Annotations[nodestate.Annotation]
	if !ours {
		return p, false
	}
	p.node = placement.Node{Name: object.Name, Policy: fallback}
	p.offers = object.Status.Allocatable
	state, err := nodestate.Decode(text)
	if err != nil {
		p.node.Closed = "publishes what cannot be read: " + err.Error()
		return p, true
	}
	switch p.node.Closed = state.Closed; {
	case object.Labels[labelNode] == removed:
		p.node.Closed = "has left gpuledger: it has the label " + labelNode + "=" + removed
	case p.node.Closed == "" && p.offersNone(offered):
		p.node.Closed = "has a kubelet that offers no GPUs: its device plugin has left, or is starting"
	}
	p.adopted = map[string]bool{}
	for _, c := range state.Adopted {
		p.adopted[c] = true
	}
	for _, g := range state.GPUs {
		p.node.GPUs = append(p.node.GPUs, placement.GPU{UUID: g.UUID, Index: g.Index, Product: g.Product,
			Memory: g.Memory, Space: g.Space, Free: g.Free, Compute: g.Compute, Modes: g.Modes, Mode: g.Mode,
			Served: max(g.Served, 1), Closed: g.Closed, Outside: g.Outside, Held: g.Held,
			Unkept: g.Unkept})
	}
	readLabels(&p.node, object.Labels)
	return p, true
}

// offersNone reports whether a node's kubelet knows some of the resources, and has none of any. Its
// device plugin is away, perhaps for good, and the annotation is old. A pod that asks by an
// annotation uses none of these resources, and would start there without a GPU.
func (p *published) offersNone(of []string) bool {
	knows := false
	for _, name := range of {
		has, known := p.offers[corev1.ResourceName(name)]
		if !has.IsZero() {
			return false
		}
		knows = knows || known
	}
	return knows
}

// lacks returns an extended resource of which the node's kubelet has less than a container asks
// for; "": none. The cluster's scheduler leaves these resources to this one. A kubelet that has
// just started has none until the device plugin has come back, and would not admit the pod. A
// resource that the kubelet does not know at all is not checked by it.
func (p *published) lacks(pod *corev1.Pod) corev1.ResourceName {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for name, wanted := range containers[i].Resources.Limits {
				has, known := p.offers[name]
				if known && strings.Contains(string(name), "/") && has.Cmp(wanted) < 0 {
					return name
				}
			}
		}
	}
	return ""
}

// readLabels reads mode and policy. A label that cannot be understood closes the node: its pods
// would run in a mode that no label chooses.
func readLabels(n *placement.Node, labels map[string]string) {
	mode, err := nodestate.ModeOf(labels)
	if err != nil {
		n.Closed = err.Error()
	}
	n.Mode = mode
	for _, label := range []string{labelACKFill, labelPolicy} {
		switch value := placement.Policy(labels[label]); value {
		case "":
		case placement.Binpack, placement.Spread:
			n.Policy = value
		default:
			n.Closed = fmt.Sprintf("has the label %s=%s, which is not known", label, value)
		}
	}
}

// assigned is a pod on a node, or on its way to it.
type assigned struct {
	uid         string
	app         string
	allocations []nodestate.Allocation
}

// withPods returns the node with what pods have or will have on it. An allocation that the node has
// adopted is in its numbers already.
func (p *published) withPods(pods []assigned) *placement.Node {
	n := p.node
	n.GPUs = slices.Clone(n.GPUs)
	at := make(map[string]int, len(n.GPUs))
	for i := range n.GPUs {
		at[n.GPUs[i].UUID] = i
	}
	for _, pod := range pods {
		for uuid, l := range p.loadsOf(pod) {
			if i, known := at[uuid]; known {
				l.onto(&n.GPUs[i], pod.app)
			}
		}
	}
	return &n
}

// load is what a pod has of a GPU and its node does not count yet.
type load struct {
	memory  grant.Bytes
	compute int
	mode    grant.Mode
	gpus    int // over how many GPUs
}

// loadsOf adds a pod's containers up for each GPU.
func (p *published) loadsOf(pod assigned) map[string]load {
	all, loads := map[string][]placement.Load{}, map[string]load{}
	for _, a := range pod.allocations {
		for _, uuid := range a.GPUs {
			all[uuid] = append(all[uuid], placement.Load{Init: a.Init, Memory: a.Memory, Compute: a.Compute,
				Adopted: p.adopted[pod.uid+"/"+a.Container]})
			l := loads[uuid]
			l.mode, l.gpus = a.Mode, max(l.gpus, len(a.GPUs))
			loads[uuid] = l
		}
	}
	for uuid, l := range loads {
		l.memory, l.compute = placement.Uncounted(all[uuid])
		loads[uuid] = l
	}
	return loads
}

// onto takes a load off what a GPU has.
func (l load) onto(g *placement.GPU, app string) {
	if g.Mode == "" {
		g.Mode, g.Served = l.mode, l.gpus
	}
	g.Free -= min(g.Free, l.memory)
	g.Compute -= min(g.Compute, l.compute)
	if l.mode == grant.Exclusive {
		g.Free, g.Compute = 0, 0
	}
	if app != "" {
		if g.Apps == nil {
			g.Apps = map[string]int{}
		}
		g.Apps[app]++
	}
}
