package deviceplugin

import (
	"errors"
	"maps"
	"slices"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// unseen is how long an unused grant is kept if the kubelet's checkpoint does not say whether a
// container needs it. A pod may pull its images for a long time, and the kubelet does not list the
// devices of init containers.
const unseen = time.Hour

// Reclaim releases the grants whose containers are gone. The device plugin API has no call for
// that: the kubelet lists the devices of each pod, and a deleted pod has none. A grant in use is
// kept. A list that may be incomplete releases nothing. The kubelet keeps the answer of an
// Allocate, so a container whose grant was released could never start again.
func (d *Allocator) Reclaim(pods []*podresources.PodResources, complete bool,
	judge func(grant.ID, time.Duration) futureUse) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.Ledger.Open()
	if n.Broken != nil {
		return n.Broken
	}
	o, err := nodeledger.ReadNode(n)
	if err != nil {
		return err
	}
	there := listed(pods, d.Resource.Name)
	if d.seen == nil {
		d.seen, d.podGone = map[grant.ID]grant.Identity{}, map[grant.ID]bool{}
		d.podListed = map[grant.ID]bool{}
	}
	var failed error
	live := map[grant.ID]bool{}
	own := d.Resource.own(nodeledger.Content{Overview: o, Node: n})
	for _, g := range own {
		live[g.ID] = true
		if len(g.Bindings) > 0 {
			d.seen[g.ID] = g.Bindings[0].Pod
		}
		if user := d.seen[g.ID]; there.pods[user.Namespace+"/"+user.Pod] {
			d.podListed[g.ID] = true
		}
		ended := complete && d.over(g, own, there, judge)
		switch {
		case len(g.Bindings) > 0:
			d.podGone[g.ID] = ended || d.podGone[g.ID] && !complete // a deleted pod does not return
		case ended:
			d.Log.Info("its container is gone; the grant is released", "grant", g.ID)
			failed = errors.Join(failed, d.Ledger.Release(g.ID))
		}
	}
	gone := func(id grant.ID) bool { return !live[id] }
	maps.DeleteFunc(d.seen, func(id grant.ID, _ grant.Identity) bool { return gone(id) })
	maps.DeleteFunc(d.podGone, func(id grant.ID, _ bool) bool { return gone(id) })
	maps.DeleteFunc(d.podListed, func(id grant.ID, _ bool) bool { return gone(id) })
	return failed
}

// forgetListed is called when another kubelet has started.
func (d *Allocator) forgetListed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.podListed)
}

// over reports whether no existing pod will use a grant any more. judge returns what the kubelet's
// files say about a grant of an age.
func (d *Allocator) over(g grant.Grant, own []grant.Grant, there listing,
	judge func(grant.ID, time.Duration) futureUse) bool {
	holds := d.holds(g)
	lists, held := overlap(holds, there.devices), set(holds)
	anew := slices.ContainsFunc(own, func(o grant.Grant) bool {
		return o.Created.After(g.Created) && overlap(d.holds(o), held)
	})
	if lists && !anew {
		return false
	}
	age := d.Now().Sub(g.Created)
	future := judge(g.ID, age)
	user, used := d.seen[g.ID]
	switch {
	case future == over:
		return true
	case future == present && !d.podListed[g.ID] && len(g.Bindings) == 0:
		// A kubelet that has restarted without an API server lists no pods, and starts the
		// containers again of those that run. Once it has listed the pod, its list counts: it
		// removes the cgroup of an ended pod only after the volumes, which may take for ever.
		return false
	case used && user.Pod != "":
		return !there.pods[user.Namespace+"/"+user.Pod]
	}
	// never found, or the engine's annotations are not trusted
	return !lists && future == unknown && age > unseen
}

// listing is what the kubelet lists for a resource.
type listing struct {
	devices map[string]bool
	pods    map[string]bool // namespace/name, with and without devices
}

func listed(pods []*podresources.PodResources, resource string) listing {
	k := listing{devices: map[string]bool{}, pods: map[string]bool{}}
	for _, pod := range pods {
		k.pods[pod.Namespace+"/"+pod.Name] = true
		for _, container := range pod.Containers {
			for _, devices := range container.Devices {
				if devices.ResourceName == resource {
					maps.Copy(k.devices, set(devices.DeviceIds))
				}
			}
		}
	}
	return k
}
