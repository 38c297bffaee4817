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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
	"github.com/gpuledger/gpuledger/kube/nodestate"
)

// publisher sends slices to the API: the kubelet plugin's helper.
type publisher interface {
	PublishResources(context.Context, resourceslice.DriverResources) error
}

// Publish sends the node's slices to the API when they have changed and pace allows it. It is
// called repeatedly. A node that can enter no grant offers nothing: its last devices are published
// as closed, and the error says why.
func (d *Driver) Publish(ctx context.Context, to publisher) error {
	p, err := d.read()
	var list []resourceslice.Slice
	if err == nil {
		list, err = Slices(p, d.pods.consumed)
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
	if err == nil && !d.pace.due(n, now, d.failed.Load()) {
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
	d.pace.published(n, now)
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
	case p.Node.Broken != nil:
		return grant.ConfigInvalid
	}
	return grant.LedgerUnreadable
}

// Reclaim releases the grants whose claim is gone or no longer allocated here. The kubelet may have
// lost its state while the claim ended. It keeps grants in use, and those whose claim the API
// cannot look up.
func (d *Driver) Reclaim(ctx context.Context) error {
	grants, failed := d.tidied()
	free := map[types.UID][]grant.Grant{}
	for _, g := range grants {
		if uid, is := claimOf(g); is && g.Source == Source && len(g.Bindings) == 0 {
			free[uid] = append(free[uid], g)
		}
	}
	for uid, of := range free {
		failed = errors.Join(failed, d.reclaim(ctx, uid, of))
	}
	return failed
}

// tidied returns the node's grants. It first removes the files of grants that were released by
// hand, and restores CDI files that were removed.
func (d *Driver) tidied() ([]grant.Grant, error) {
	unlock, err := d.lockClaims() // so that a grant that is being prepared is not overlooked
	if err != nil {
		return nil, err
	}
	defer unlock()
	n := d.Ledger.Open()
	if n.Broken != nil {
		return nil, n.Broken
	}
	o, err := nodeledger.ReadNode(n)
	if err != nil {
		return nil, err
	}
	failed := d.Ledger.RemoveOrphans(o.View)
	for _, g := range o.Grants {
		if g.Source != Source || g.Draining {
			continue
		}
		restored, err := d.Ledger.Restore(g)
		failed = errors.Join(failed, err)
		if restored {
			d.Log.Warn("a claim's CDI file was removed; it has been written again", "grant", g.ID)
		}
	}
	return o.Grants, failed
}

// apiTimeout is how long the API may take to return a claim. Meanwhile the claim can be neither
// prepared nor given up.
const apiTimeout = 5 * time.Second

// reclaim releases the free grants of a claim that is gone.
func (d *Driver) reclaim(ctx context.Context, uid types.UID, free []grant.Grant) error {
	namespace, name, ok := claimName(free[0])
	if !ok {
		return nil
	}
	unlock, err := d.lockClaim(uid) // no Prepare comes in between
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, apiTimeout) // the kubelet waits meanwhile
	defer cancel()
	claim, err := d.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil && !gone(err):
		return fmt.Errorf("cannot tell whether the claim of grant %s is there: %w", free[0].ID, err)
	case err == nil && claim.UID == uid && isAllocatedOn(d.Node, claim):
		return nil
	}
	var failed error
	for _, g := range free {
		d.Log.Info("the claim is gone; its grant is released", "namespace", namespace, "claim",
			name, "grant", g.ID)
		failed = errors.Join(failed, d.Ledger.Withdraw(g.ID))
	}
	return failed
}

// SameNode calls Broken if the cluster's Node of this name is another than at the first call. It
// also reads which mode the Node's labels choose. Slices belong to a Node by its UID, which the
// library looks up once. Slices of the old Node are garbage-collected each time they are made.
func (d *Driver) SameNode(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	n, err := d.Client.CoreV1().Nodes().Get(ctx, d.Node, metav1.GetOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("cannot tell whether node %s is the same: %w", d.Node, err)
	case d.node == "":
		d.node = n.UID
	case d.node != n.UID && d.Broken != nil:
		d.Broken(fmt.Errorf("the cluster has another node %s, and slices belong to the one that it had",
			d.Node))
	}
	mode, err := nodestate.ModeOf(n.Labels)
	if err != nil {
		return fmt.Errorf("the node %w", err) // and the mode stays as it was
	}
	d.chosen.Store(mode)
	return nil
}

// gone reports whether the API itself says that an object does not exist. Other servers also answer
// 404: a proxy in front of an API server that is down, or a server without this version of the API.
func gone(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err,
		metav1.CauseTypeUnexpectedServerResponse)
}

// isAllocatedOn reports whether a claim has a device of a node.
func isAllocatedOn(node string, claim *resourceapi.ResourceClaim) bool {
	return claim.Status.Allocation != nil &&
		slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
			func(r resourceapi.DeviceRequestAllocationResult) bool {
				return r.Driver == DriverName && r.Pool == node
			})
}
