package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// Driver answers the kubelet of one node. All its state can be read again: from the API, the
// ledger, the grants' CDI files and the kept references. So another process can take over between
// any two calls.
type Driver struct {
	Ledger nodeledger.Ledger
	Node   string // the node's name in the cluster, and the pool's
	Client kubernetes.Interface
	// Watch is a client with a limit of its own, for watching claims: many that are prepared at once
	// are then also watched at once, and no call of the kubelet must wait for that. nil: Client.
	Watch kubernetes.Interface
	Log   *slog.Logger
	// Broken is called when the driver cannot go on: the kubelet cannot reach it any more, or the
	// cluster has another Node of this name. Then another process may start. It may be nil.
	Broken func(error)
	// Intercept is called for each call of the kubelet, if it is set.
	Intercept grpc.UnaryServerInterceptor

	// last has the last configuration that could be read; nil: none yet.
	last   atomic.Pointer[nodeledger.Ledger]
	pods   pods                  // of the claims with grants
	locks  claimLocks            // of claims that are prepared, given up or reclaimed
	pace   pace                  // of publishing
	failed atomic.Bool           // the API may not have taken the last publishing
	known  []resourceslice.Slice // the last slices that could be made; nil: none yet
	node   types.UID             // UID of the Node that owns the slices; "": not known yet
}

// read returns the ledger and the inventory.
func (d *Driver) read() (nodeledger.Content, error) {
	p, err := d.Ledger.Read()
	if p.Node.Broken == nil {
		last := d.Ledger.WithConfigOf(p)
		d.last.Store(&last)
	}
	return p, err
}

// readable returns the ledger with a configuration that can be read, the present or the last one. A
// typing error in the configuration must not prevent pods from ending.
func (d *Driver) readable() (nodeledger.Ledger, error) {
	broken := d.Ledger.Open().Broken
	if broken == nil {
		return d.Ledger, nil
	}
	if last := d.last.Load(); last != nil {
		return *last, nil
	}
	return d.Ledger, broken
}

// PrepareResourceClaims enters a grant for each claim and makes it a CDI device. Each claim that
// fails has its own error, which the kubelet shows in the pod's events.
func (d *Driver) PrepareResourceClaims(_ context.Context,
	claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(claim)
		if err != nil {
			err = fmt.Errorf("gpuledger: %w", err)
			d.Log.Warn("cannot prepare", "namespace", claim.Namespace, "claim", claim.Name, "uid",
				claim.UID, "error",
				err)
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

func (d *Driver) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	unlock, err := d.lockClaim(claim.UID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	p, err := d.read()
	if err != nil {
		return nil, err
	}
	w, err := translate(claim, d.Node, p)
	if err != nil {
		return nil, err
	}
	if w.ask.For, err = d.mayUse(claim, p); err != nil {
		return nil, err
	}
	defer d.pods.signal() // from now on other pods can be added to the claim
	g, held := p.GrantOf(w.ask.Owner)
	switch {
	case held && g.Draining:
		return nil, fmt.Errorf("the claim's grant %s was released, and a container still uses it", g.ID)
	case held && w.is(g):
		if err := d.tie(g, w.ask.For); err != nil {
			return nil, err
		}
		reference, err := d.Ledger.ExposeAgain(g)
		if err != nil {
			return nil, err
		}
		return w.named(reference), nil
	case held && len(g.Bindings) > 0:
		return nil, fmt.Errorf("the claim was allocated anew while a container uses its grant %s", g.ID)
	// Allocated again; the kubelet missed the end of the old allocation.
	case held:
		if err := d.Ledger.Withdraw(g.ID); err != nil {
			return nil, err
		}
	}
	reference, err := d.Ledger.EnterExposed(w.ask)
	if err != nil {
		return nil, err
	}
	d.Log.Info("prepared", "namespace", claim.Namespace, "claim", claim.Name, "uid", claim.UID, "grant",
		reference.ID)
	return w.named(reference), nil
}

// UnprepareResourceClaims releases the claims' grants. A claim without a grant needs nothing.
func (d *Driver) UnprepareResourceClaims(_ context.Context,
	claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = d.unprepare(string(claim.UID))
	}
	return results, nil
}

func (d *Driver) unprepare(uid string) error {
	unlock, err := d.lockClaim(types.UID(uid))
	if err != nil {
		return err
	}
	defer unlock()
	b, err := d.readable()
	if err != nil {
		return err
	}
	n := b.Open()
	o, err := nodeledger.ReadNode(n) // the inventory may be unusable: a release needs none
	if err != nil {
		return err
	}
	g, held := nodeledger.Content{Overview: o, Node: n}.GrantOf(owner(uid))
	if !held {
		return nil
	}
	if err := b.Withdraw(g.ID); err != nil {
		return fmt.Errorf("gpuledger: %w", err)
	}
	d.Log.Info("released", "uid", uid, "grant", g.ID)
	return nil
}

// HandleError logs errors of the library's background work. If the API refuses slices the driver
// continues, because grants do not depend on them. It publishes them again within a minute. The
// library also tries again, but after longer and longer waits, up to a quarter of an hour. Until
// then the scheduler would use the old slices. A field that the API dropped would be dropped again,
// so that is only logged.
func (d *Driver) HandleError(_ context.Context, err error, message string) {
	d.Log.Error(message, "error", err)
	var dropped *resourceslice.DroppedFieldsError
	switch {
	case errors.As(err, &dropped):
	case errors.Is(err, kubeletplugin.ErrRecoverable):
		d.failed.Store(true)
	case d.Broken != nil:
		d.Broken(fmt.Errorf("%s: %w", message, err))
	}
}
