package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/book"
)

// publisher is what takes slices to the API: the kubelet plugin's helper.
type publisher interface {
	PublishResources(context.Context, resourceslice.DriverResources) error
}

// Publish tells the cluster what the node has, where that has changed, and as soon as pace allows. It is called again and again. A node
// that can enter no grant offers nothing: what it had is told as closed, and its error says why.
func (d *Driver) Publish(ctx context.Context, to publisher) error {
	p, err := d.read()
	var list []resourceslice.Slice
	if err == nil {
		list, err = Slices(p)
	}
	if err != nil {
		err = fmt.Errorf("cannot offer the node's GPUs: %w", err)
		return errors.Join(err, d.tell(ctx, to, closed(d.known, why(p, err)), p.Node.Host.Now()))
	}
	d.known = list
	return d.tell(ctx, to, list, p.Now)
}

// tell publishes slices, where it is time to.
func (d *Driver) tell(ctx context.Context, to publisher, list []resourceslice.Slice, now time.Time) error {
	n, err := noticeOf(list)
	if err == nil && !d.pace.due(n, now, d.failed.Load()) {
		return nil
	}
	if err == nil {
		d.failed.Store(false) // it is written later, and may fail again
		err = to.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.Node: {Slices: list}}})
	}
	if err != nil {
		return fmt.Errorf("cannot publish: %w", err)
	}
	d.pace.published(n, now)
	return nil
}

// closed are slices of devices that nobody may be given now. Of a node of which nothing is known yet there are none: what an earlier driver has
// published would have pods come that never start.
func closed(known []resourceslice.Slice, code grant.Code) []resourceslice.Slice {
	list := []resourceslice.Slice{{}}
	if known != nil {
		list = slices.Clone(known)
	}
	for i := range list {
		list[i].Devices = slices.Clone(list[i].Devices)
		for j := range list[i].Devices {
			d := &list[i].Devices[j]
			d.Taints = slices.DeleteFunc(slices.Clone(d.Taints), func(t resourceapi.DeviceTaint) bool { return t.Key == taintClosed })
			d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: taintClosed, Value: string(code), Effect: resourceapi.DeviceTaintEffectNoSchedule})
		}
	}
	return list
}

// why is the code of what keeps a node from entering grants.
func why(p book.Page, err error) grant.Code {
	var refusal *grant.Refusal
	switch {
	case errors.As(err, &refusal):
		return refusal.Code
	case p.Node.Broken != nil:
		return grant.ConfigInvalid
	}
	return grant.LedgerUnreadable
}

// Reclaim releases grants whose claim is gone, or is no longer allocated here: of a kubelet that lost its memory while the
// claim ended. A grant that a container uses is left alone; so is one whose claim the API does not tell of.
func (d *Driver) Reclaim(ctx context.Context) error {
	grants, failed := d.tidied()
	for _, g := range grants {
		if g.Source == Source && len(g.Bindings) == 0 {
			failed = errors.Join(failed, d.reclaim(ctx, g))
		}
	}
	return failed
}

// tidied are the grants of the node, after the files are dropped of those that somebody else has released, and those are there again that somebody
// has removed.
func (d *Driver) tidied() ([]grant.Grant, error) {
	over, err := d.turn() // a grant that is being prepared is not missed
	if err != nil {
		return nil, err
	}
	defer over()
	n := d.Book.Open()
	if n.Broken != nil {
		return nil, n.Broken
	}
	o, err := n.Overview()
	if err != nil {
		return nil, err
	}
	failed := d.Book.Tidy(o.View)
	for _, g := range o.Grants {
		if g.Source != Source || g.Draining {
			continue
		}
		restored, err := d.Book.Restore(g)
		failed = errors.Join(failed, err)
		if restored {
			d.Log.Warn("somebody has removed a claim's CDI file; it is there again", "grant", g.ID)
		}
	}
	return o.Grants, failed
}

// patience is how long the API may take to tell of a claim. While it is asked nothing can be prepared or given up.
const patience = 5 * time.Second

func (d *Driver) reclaim(ctx context.Context, g grant.Grant) error {
	namespace, name, ok := place(g)
	if !ok {
		return nil
	}
	over, err := d.turn() // no Prepare comes in between
	if err != nil {
		return err
	}
	defer over()
	ctx, cancel := context.WithTimeout(ctx, patience) // the kubelet waits meanwhile
	defer cancel()
	claim, err := d.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil && !gone(err):
		return fmt.Errorf("cannot tell whether the claim of grant %s is there: %w", g.ID, err)
	case err == nil && owner(string(claim.UID)) == g.Owner && d.allocatedHere(claim):
		return nil
	}
	d.Log.Info("the claim is gone; its grant is released", "namespace", namespace, "claim", name, "grant", g.ID)
	return d.Book.Withdraw(g.ID)
}

// SameNode ends the driver where the cluster has another Node of its name by now than when it was called first. Slices belong to a Node by its
// UID, which the library looks up once: those of the old one are collected as garbage as often as they are made.
func (d *Driver) SameNode(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n, err := d.Client.CoreV1().Nodes().Get(ctx, d.Node, metav1.GetOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("cannot tell whether node %s is the same: %w", d.Node, err)
	case d.node == "":
		d.node = n.UID
	case d.node != n.UID && d.Broken != nil:
		d.Broken(fmt.Errorf("the cluster has another node %s, and slices belong to the one that it had", d.Node))
	}
	return nil
}

// gone reports whether the API says that there is no such object. It does not who answers 404 to whatever is asked: what stands before an API
// server that is away, or a server for which this version of the API is switched off.
func gone(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// allocatedHere reports whether a claim has anything of this node's.
func (d *Driver) allocatedHere(claim *resourceapi.ResourceClaim) bool {
	return claim.Status.Allocation != nil && slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver == DriverName && r.Pool == d.Node
	})
}
