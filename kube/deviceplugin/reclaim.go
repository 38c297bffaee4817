package deviceplugin

import (
	"errors"
	"maps"
	"slices"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/book"
)

// unseen is how long a grant waits for a container that was never found to use it, where the kubelet's checkpoint does not say
// whether there is one: a pod may pull its images for long, and the kubelet does not list the devices of init containers.
const unseen = time.Hour

// Reclaim releases the grants whose containers are gone. There is no call for that: the kubelet lists who has which device,
// and a pod that is gone gives up all. A grant in use is left alone. From a list that may not be complete nothing is concluded:
// the kubelet keeps the answer of an Allocate, and a container whose grant was released could never start again.
func (d *Desk) Reclaim(pods []*podresources.PodResources, complete bool, tells func(grant.ID, time.Duration) fate) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.Book.Open()
	if n.Broken != nil {
		return n.Broken
	}
	o, err := n.Overview()
	if err != nil {
		return err
	}
	there := listed(pods, d.Resource.Name)
	if d.seen == nil {
		d.seen, d.stray = map[grant.ID]grant.Identity{}, map[grant.ID]bool{}
	}
	var failed error
	live := map[grant.ID]bool{}
	own := d.Resource.own(book.Page{Overview: o, Node: n})
	for _, g := range own {
		live[g.ID] = true
		if len(g.Bindings) > 0 {
			d.seen[g.ID] = g.Bindings[0].Pod
		}
		ended := complete && d.over(g, own, there, tells)
		switch {
		case len(g.Bindings) > 0:
			d.stray[g.ID] = ended || d.stray[g.ID] && !complete // a pod that is gone does not come again
		case ended:
			d.Log.Info("its container is gone; the grant is released", "grant", g.ID)
			failed = errors.Join(failed, d.Book.Release(g.ID))
		}
	}
	gone := func(id grant.ID) bool { return !live[id] }
	maps.DeleteFunc(d.seen, func(id grant.ID, _ grant.Identity) bool { return gone(id) })
	maps.DeleteFunc(d.stray, func(id grant.ID, _ bool) bool { return gone(id) })
	return failed
}

// over reports whether no pod that is there will use a grant any more. tells is what the kubelet's files tell of a grant of an age.
func (d *Desk) over(g grant.Grant, own []grant.Grant, there kubelet, tells func(grant.ID, time.Duration) fate) bool {
	lists := overlap(d.holds(g), there.devices)
	anew := slices.ContainsFunc(own, func(o grant.Grant) bool { return o.Created.After(g.Created) && overlap(d.holds(o), d.holds(g)) })
	if lists && !anew {
		return false
	}
	age := d.Now().Sub(g.Created)
	told := tells(g.ID, age)
	user, used := d.seen[g.ID]
	switch {
	case told == over:
		return true
	case used && user.Pod != "":
		return !there.pods[user.Namespace+"/"+user.Pod]
	}
	return !lists && told == unknown && age > unseen // never found, or by an engine that vouches for nobody
}

// kubelet is what the kubelet lists of a resource.
type kubelet struct {
	devices []string
	pods    map[string]bool // namespace/name, with and without devices
}

func listed(pods []*podresources.PodResources, resource string) kubelet {
	k := kubelet{pods: map[string]bool{}}
	for _, pod := range pods {
		k.pods[pod.Namespace+"/"+pod.Name] = true
		for _, container := range pod.Containers {
			for _, devices := range container.Devices {
				if devices.ResourceName == resource {
					k.devices = append(k.devices, devices.DeviceIds...)
				}
			}
		}
	}
	return k
}
