package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// publisher sends slices to the API: the kubelet plugin's helper.
type publisher interface {
	PublishResources(context.Context, resourceslice.DriverResources) error
}

// Publish sends the node's slices to the API when they have changed and the rate limit allows it.
// It is called repeatedly. A node that can enter no grant offers nothing: its last devices are
// published as closed, and the error says why. Before the labels of the Node are read the API keeps
// what it has, because the modes of an earlier driver are those that the labels choose.
func (d *Driver) Publish(ctx context.Context, to publisher) error {
	chosen := d.chosen.Load()
	if chosen == nil {
		err := d.SameNode(ctx)
		if chosen = d.chosen.Load(); chosen == nil {
			return fmt.Errorf("cannot offer the node's GPUs: %w", err)
		}
	}
	p, err := d.read()
	var list []resourceslice.Slice
	if err == nil {
		list, err = Slices(p, d.pods.consumed)
	}
	if err == nil && chosen.unknown != nil { // pods would run in a mode that no label chooses
		d.known, err = list, chosen.unknown
	}
	if err != nil {
		err = fmt.Errorf("cannot offer the node's GPUs: %w", err)
		return errors.Join(err, d.publishIfDue(ctx, to, closed(d.known, refusalCode(p, err)),
			p.Node.Host.Now()))
	}
	d.known = list
	return d.publishIfDue(ctx, to, list, p.Now)
}

// publishIfDue publishes slices if it is time to.
func (d *Driver) publishIfDue(ctx context.Context, to publisher, list []resourceslice.Slice,
	now time.Time) error {
	n, err := summarize(list)
	if err == nil && !d.publishing.due(n, now, d.failed.Load()) {
		return nil
	}
	if err == nil {
		// The library writes later, and may fail again.
		d.failed.Store(false)
		err = to.PublishResources(ctx,
			resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.Node: {Slices: list}}})
	}
	if err != nil {
		return fmt.Errorf("cannot publish: %w", err)
	}
	d.publishing.published(n, now)
	return nil
}

// closed returns slices whose devices take no grants. If nothing is known of the node yet it
// returns no devices. The devices of an earlier driver would attract pods that never start.
func closed(known []resourceslice.Slice, code grant.Code) []resourceslice.Slice {
	list := []resourceslice.Slice{{}}
	if known != nil {
		list = slices.Clone(known)
	}
	for i := range list {
		list[i].Devices = slices.Clone(list[i].Devices)
		for j := range list[i].Devices {
			d := &list[i].Devices[j]
			d.Taints = slices.DeleteFunc(slices.Clone(d.Taints),
				func(t resourceapi.DeviceTaint) bool { return t.Key == taintClosed })
			d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: taintClosed, Value: string(code),
				Effect: resourceapi.DeviceTaintEffectNoSchedule})
		}
	}
	return list
}

// refusalCode returns the code of the error that keeps a node from entering grants.
func refusalCode(p nodeledger.Content, err error) grant.Code {
	var refusal *grant.Refusal
	switch {
	case errors.As(err, &refusal):
		return refusal.Code
	case p.Node.Broken != nil, errors.As(err, new(unknownLabel)):
		return grant.ConfigInvalid
	}
	return grant.LedgerUnreadable
}
