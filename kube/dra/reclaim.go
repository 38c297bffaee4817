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

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// Reclaim releases the grants whose claim is gone or no longer allocated here. The kubelet may have
// lost its state while the claim ended, unprepare has kept the grant, or someone has removed the
// claim's finalizer and deleted it. The scheduler gives the GPU to others then, while a container
// may still use the grant. Such a grant is draining. Reclaim keeps grants whose claim the API
// cannot look up. It does not look up claims in use that a watch shows with pods.
func (d *Driver) Reclaim(ctx context.Context) error {
	grants, failed := d.tidied()
	free := map[types.UID][]grant.Grant{}
	for _, g := range grants {
		uid, is := claimOf(g)
		r, _ := d.pods.known(uid)
		inUse := len(g.Bindings) > 0 && (g.Draining || r.shown && !r.empty)
		if is && g.Source == Source && !inUse {
			free[uid] = append(free[uid], g)
		}
	}
	for uid, of := range free {
		err := d.reclaim(ctx, uid, of)
		failed = errors.Join(failed, err)
		if errors.Is(err, context.DeadlineExceeded) {
			break // each of the others would wait as long, and a pass of minutes looks like one that hangs
		}
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
		restored, err := d.Ledger.RestoreCDI(g)
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

// reclaim releases the grants of a claim that is gone. A grant in use is draining then.
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
		failed = errors.Join(failed, d.Ledger.ReleaseWithCDI(g.ID))
	}
	return failed
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
