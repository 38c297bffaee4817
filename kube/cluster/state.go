package cluster

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodestate"
	"github.com/gpuledger/gpuledger/kube/placement"
)

// addState adds the GPUs that a node with the device plugin publishes, and what the annotations of
// its pods have of them.
func (n *Node) addState(text string, pods []corev1.Pod) {
	state, err := nodestate.Decode(text)
	if err != nil || len(state.GPUs) == 0 {
		return // of another version, or a node that cannot read its GPUs: its units remain
	}
	if state.Pod != "" && !slices.ContainsFunc(pods, func(p corev1.Pod) bool {
		return p.Namespace+"/"+p.Name == state.Pod
	}) {
		return // nothing keeps it up to date
	}
	for _, g := range state.GPUs {
		one := GPU{UUID: plain(g.UUID), Index: int64(g.Index), Product: plain(g.Product),
			Mode: plain(string(g.Mode)), Total: int64(g.Memory), Allocated: int64(g.Granted),
			Used: int64(g.Used)}
		if cmp.Or(g.Closed, state.Closed) != "" {
			one.Health = "closed"
		}
		n.GPUs = append(n.GPUs, one)
	}
	n.Counted = nil // these units only let the kubelet admit pods
	for i := range pods {
		if pods[i].Spec.NodeName == n.Name {
			n.addPod(&pods[i], state.Adopted)
		}
	}
}

// addPod adds the shares of a pod's containers. What the node has not adopted yet is not in its
// ledger, and so is added to what is allocated, as the scheduler counts it.
func (n *Node) addPod(pod *corev1.Pod, adopted []string) {
	loads := map[int][]placement.Load{} // by GPU
	for _, a := range nodestate.AllocationsOf(pod) {
		has := slices.Contains(adopted, string(pod.UID)+"/"+a.Container)
		for _, uuid := range a.GPUs {
			i := slices.IndexFunc(n.GPUs, func(g GPU) bool { return g.UUID == uuid })
			if i < 0 {
				continue
			}
			s := ClaimShare{Namespace: pod.Namespace, Container: a.Container, Pods: []string{pod.Name},
				Mode: string(a.Mode), Memory: int64(a.Memory), Compute: int64(a.Compute)}
			if s.Mode == exclusive {
				s.Memory = n.GPUs[i].Total
			}
			n.GPUs[i].Shares = append(n.GPUs[i].Shares, s)
			loads[i] = append(loads[i], placement.Load{Init: a.Init, Adopted: has,
				Memory: grant.Bytes(s.Memory)})
			if !has {
				n.GPUs[i].Mode = cmp.Or(n.GPUs[i].Mode, s.Mode)
			}
		}
	}
	for i, list := range loads {
		memory, _ := placement.Uncounted(list)
		n.GPUs[i].Allocated += int64(memory)
	}
	for i := range n.GPUs {
		slices.SortFunc(n.GPUs[i].Shares, func(a, b ClaimShare) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), slices.Compare(a.Pods, b.Pods),
				cmp.Compare(a.Container, b.Container))
		})
	}
}
