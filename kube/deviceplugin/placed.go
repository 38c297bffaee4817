package deviceplugin

import (
	"errors"
	"fmt"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// Where a scheduler places pods, it writes what each container gets into the pod's annotations. The
// container's create adopts that as its grant, or is refused. The plugin only lets the kubelet
// admit what was placed, and marks the containers: one that was not placed never starts without its
// GPU.

// MostOffered is the most devices of one resource that a node offers. A list of more would not fit
// into a message to the kubelet (4 MB). A resource that no node offers can still be asked for: the
// kubelet admits it, and only the scheduler counts it.
const MostOffered = 1 << 16

// Placed returns a resource of which the containers adopt what a scheduler allocates. One stands
// for an amount of memory, or there are so many of each GPU.
func Placed(name string, unit grant.Bytes, each int) Resource {
	return Resource{Name: name, Unit: unit, Each: each, Placed: true}
}

// placed returns as many devices as all GPUs are. It leaves the counting to the scheduler and the
// ledger, so the last part of a unit counts as one.
func (r Resource) placed(c nodeledger.Content) []*api.Device {
	var memory grant.Bytes
	for _, g := range c.Inventory.GPUs {
		memory += g.Memory
	}
	total := len(c.Inventory.GPUs) * r.Each
	if r.Unit > 0 {
		total = int((memory + r.Unit - 1) / r.Unit)
	}
	list := make([]*api.Device, total)
	for n := range list {
		list[n] = &api.Device{ID: unitID(n), Health: api.Healthy}
	}
	return list
}

// lookPlaced updates the list of devices. If containers can adopt nothing here, only the devices
// that containers have stay healthy.
func (p *Plugin) lookPlaced() error {
	content, err := p.Allocator.Ledger.Read()
	var devices []*api.Device
	if err == nil {
		devices = p.Allocator.Resource.placed(content)
		if why := content.AdoptsNothing(); why != "" {
			err = errors.New("this node " + why)
		}
	}
	if len(devices) > MostOffered {
		if !p.registered.Swap(true) { // there is nothing that a kubelet has to know
			p.Allocator.Log.Info("not offered: the scheduler alone counts it",
				"resource", p.Allocator.Resource.Name, "number", len(devices), "most", MostOffered)
		}
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && devices != nil { // the inventory is known
		return errors.Join(err, p.offer(p.closed(devices), nil))
	}
	return p.offer(devices, err)
}

// hold sets the devices that containers have, as the kubelet lists them.
func (p *Plugin) hold(devices map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = devices
}

// placed answers for a container that adopts. The variables are those of gpushare's own device
// plugin: programs that keep to their share themselves read them.
func (d *Allocator) placed(ids []string) (*api.ContainerAllocateResponse, error) {
	list, err := units(ids)
	if err != nil {
		return nil, err
	}
	response := &api.ContainerAllocateResponse{Annotations: map[string]string{Annotation: grant.AdoptMark}}
	if d.Resource.Name == gpushareMemory {
		c, err := d.Ledger.Read()
		if err != nil {
			return nil, err
		}
		var card grant.Bytes
		for _, g := range c.Inventory.GPUs {
			card = max(card, g.Memory)
		}
		response.Envs = map[string]string{shareContainer: fmt.Sprint(len(list)),
			shareCard: fmt.Sprint(int(card / d.Resource.Unit))}
	}
	d.Log.Info("admitted", "resource", d.Resource.Name, "devices", len(list))
	return response, nil
}
