package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuledger/gpuledger/kube/nodestate"
	"github.com/gpuledger/gpuledger/kube/placement"
)

// state has what the API says about nodes and pods, and the bindings that this process has just
// written. All of it can be lost: it is read again, and the node's ledger decides last.
type state struct {
	now     func() time.Time
	policy  placement.Policy             // of nodes without one
	offered []string                     // Config.Offered
	app     func(pod *corev1.Pod) string // the application whose replicas are spread; "": none

	mu    sync.Mutex
	nodes map[string]*cachedNode
	pods  map[types.UID]*cachedPod
	// changes counts what could make room for a waiting pod, or take it.
	changes uint64
}

type cachedNode struct {
	read published
	ours bool
	pods map[types.UID]bool // on it, or on their way to it
	full *placement.Node    // with its pods; nil: to be made again
}

// cachedPod is a pod that is on a node, or on its way.
type cachedPod struct {
	assigned
	node  string
	until time.Time // of a binding that the API has not shown yet: how long it counts
}

func newState(c Config, app func(*corev1.Pod) string) *state {
	return &state{now: c.Now, policy: c.Policy, offered: c.Offered, app: app,
		nodes: map[string]*cachedNode{}, pods: map[types.UID]*cachedPod{}}
}

// at returns a node, which its pods may be known before.
func (c *state) at(name string) *cachedNode {
	n := c.nodes[name]
	if n == nil {
		n = &cachedNode{pods: map[types.UID]bool{}}
		c.nodes[name] = n
	}
	return n
}

// node notes what the API says about a node.
func (c *state) node(object *corev1.Node) {
	read, ours := readNode(object, c.policy, c.offered)
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.at(object.Name)
	n.read, n.ours, n.full = read, ours, nil
	c.changes++
}

func (c *state) nodeGone(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nodes[name]; n != nil && len(n.pods) > 0 {
		n.read, n.ours, n.full = published{}, false, nil
	} else {
		delete(c.nodes, name)
	}
}

// pod notes what the API says about a pod. One that is not bound has nothing: what it has and where
// it goes is written in one step.
func (c *state) pod(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		c.remove(pod.UID)
	case pod.Spec.NodeName == "": // perhaps older than the own binding
	default:
		c.put(&cachedPod{node: pod.Spec.NodeName, assigned: assigned{uid: string(pod.UID),
			app: c.app(pod), allocations: nodestate.AllocationsOf(pod)}})
	}
}

func (c *state) podGone(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(uid)
}

// put notes a pod with allocations in the place of what was known of it. The caller has the lock.
func (c *state) put(p *cachedPod) {
	c.remove(types.UID(p.uid))
	if len(p.allocations) == 0 {
		return
	}
	n := c.at(p.node)
	n.pods[types.UID(p.uid)], n.full = true, nil
	c.pods[types.UID(p.uid)] = p
	c.changes++
}

func (c *state) remove(uid types.UID) {
	p := c.pods[uid]
	if p == nil {
		return
	}
	n := c.nodes[p.node]
	n.full = nil
	delete(n.pods, uid)
	delete(c.pods, uid)
	c.changes++
}

// expire forgets bindings that the API never showed.
func (c *state) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, p := range c.pods {
		if !p.until.IsZero() && !c.now().Before(p.until) {
			c.remove(uid)
		}
	}
}

// names returns the names of all nodes.
func (c *state) names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.nodes))
}

// rooms returns the room of each of some nodes. They are searched without the lock: that can take a
// tenth of a second for a pod of many containers.
func (c *state) rooms(names []string, pod *corev1.Pod) []*placement.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	rooms := make([]*placement.Node, len(names))
	for i, name := range names {
		rooms[i] = c.room(name, pod)
	}
	return rooms
}

// room returns a node with what is free on it for a pod; nil if it is none of ours. The caller has
// the lock. The node never changes: what changes gives a new one.
func (c *state) room(name string, pod *corev1.Pod) *placement.Node {
	n := c.nodes[name]
	if n == nil || !n.ours {
		return nil
	}
	var room *placement.Node
	if n.pods[pod.UID] { // it is placed once more: what it had does not count
		room = n.read.withPods(c.on(n, pod.UID))
	} else {
		if n.full == nil {
			n.full = n.read.withPods(c.on(n, ""))
		}
		room = n.full
	}
	if name := n.read.lacks(pod); name != "" && room.Closed == "" {
		closed := *room
		closed.Closed = fmt.Sprintf("has a kubelet that offers less %s than the pod asks for", name)
		return &closed
	}
	return room
}

// on returns the pods of a node but for one.
func (c *state) on(n *cachedNode, but types.UID) []assigned {
	pods := make([]assigned, 0, len(n.pods))
	for uid := range n.pods {
		if uid != but {
			pods = append(pods, c.pods[uid].assigned)
		}
	}
	return pods
}

// assume chooses GPUs for a pod on a node and notes them, so that the next pod finds less.
func (c *state) assume(pod *corev1.Pod, w *placement.Wish, node string,
	until time.Time) (annotations map[string]string, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.room(node, pod)
	if n == nil {
		return nil, "the node " + node + " publishes no GPUs of gpuledger"
	}
	choices, fit := placement.Place(w, n)
	if !fit {
		return nil, placement.Why(w, []*placement.Node{n})
	}
	annotations = annotationsOf(n, choices)
	bound := pod.DeepCopy()
	if bound.Annotations == nil {
		bound.Annotations = map[string]string{}
	}
	for key, value := range annotations {
		bound.Annotations[key] = value
	}
	c.put(&cachedPod{node: node, until: until,
		assigned: assigned{uid: string(pod.UID), app: w.App, allocations: nodestate.AllocationsOf(bound)}})
	return annotations, ""
}

// assumedUntil changes how long a binding counts that the API has not shown yet. What the API shows
// stays.
func (c *state) assumedUntil(uid types.UID, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[uid]; p != nil && !p.until.IsZero() {
		p.until = until
	}
}

// forget takes back a binding that was not written.
func (c *state) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[uid]; p != nil && !p.until.IsZero() {
		c.remove(uid)
	}
}
