package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// Driver answers the kubelet of one node. All its state can be read again: from the API, the
// ledger, the grants' CDI files and the kept references. So another process can take over between
// any two calls.
type Driver struct {
	Ledger nodeledger.Ledger
	Node   string // the node's name in the cluster, and the pool's
	Client kubernetes.Interface
	// Watch is a client with a limit of its own, for watching claims: many that are prepared at
	// once are then also watched at once, and no call of the kubelet must wait for that. nil:
	// Client.
	Watch kubernetes.Interface
	Log   *slog.Logger
	// Broken is called when the driver cannot go on: the kubelet cannot reach it any more, or the
	// cluster has another Node of this name. Then another process may start. It may be nil.
	Broken func(error)
	// Intercept is called for each call of the kubelet, if it is set.
	Intercept grpc.UnaryServerInterceptor

	// last has the last configuration that could be read; nil: none yet.
	last       atomic.Pointer[nodeledger.Ledger]
	pods       pods                   // of the claims with grants
	locks      claimLocks             // of claims that are prepared, given up or reclaimed
	reports    reports                // of claims that were prepared
	publishing rateLimit              // of slices
	failed     atomic.Bool            // the API may not have taken the last publishing
	known      []resourceslice.Slice  // the last slices that could be made; nil: none yet
	unreported sync.Once              // logs once that the status of claims cannot be written
	nodeLock   sync.Mutex             // of node, and of what SameNode stores in chosen
	node       types.UID              // UID of the Node that owns the slices; "": not known yet
	chosen     atomic.Pointer[choice] // by the labels of the Node; nil: they were never read
}

// read returns the ledger and the inventory.
func (d *Driver) read() (nodeledger.Content, error) {
	p, err := d.Ledger.Read()
	if p.Node.Broken == nil {
		last := d.Ledger.WithConfigOf(p)
		d.last.Store(&last)
	}
	if chosen := d.chosen.Load(); chosen != nil {
		p.Chosen = chosen.mode
	}
	return p, err
}

// readable returns the ledger with a configuration that can be read, the present or the last one. A
// typing error in the configuration must not prevent pods from ending.
func (d *Driver) readable() (nodeledger.Ledger, error) {
	n := d.Ledger.Open()
	if n.Broken == nil {
		return d.Ledger.WithConfigOf(nodeledger.Content{Node: n}), nil
	}
	if last := d.last.Load(); last != nil {
		return *last, nil
	}
	return d.Ledger, n.Broken
}

// PrepareResourceClaims enters the grants of each claim and makes each a CDI device. Each claim
// that fails has its own error, which the kubelet shows in the pod's events.
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
	asks, err := translate(claim, d.Node, p)
	if err != nil {
		return nil, err
	}
	to, err := d.mayUse(claim, p)
	if err != nil {
		return nil, err
	}
	steps, stale, err := plan(claim.UID, asks, grantsOf(claim.UID, p.Grants))
	if err != nil {
		return nil, err
	}
	defer d.pods.signal() // from now on other pods can be added to the claim
	for _, id := range stale {
		if err := d.Ledger.ReleaseWithCDI(id); err != nil {
			return nil, err
		}
	}
	for i := range steps {
		steps[i].ask.For = to
	}
	return d.takeAll(claim, steps)
}

// takeAll takes all grants of a claim, or enters none.
func (d *Driver) takeAll(claim *resourceapi.ResourceClaim, steps []step) ([]kubeletplugin.Device, error) {
	var devices []kubeletplugin.Device
	var fresh []grant.ID
	for _, s := range steps {
		reference, err := d.take(s)
		if err != nil {
			// The kubelet gets no name, so what this call has entered would serve no container.
			for _, id := range fresh {
				err = errors.Join(err, d.Ledger.ReleaseWithCDI(id))
			}
			return nil, err
		}
		if s.held == nil {
			fresh = append(fresh, reference.ID)
			d.Log.Info("prepared", "namespace", claim.Namespace, "claim", claim.Name, "uid", claim.UID,
				"grant", reference.ID, "owner", s.ask.Owner)
		}
		devices = append(devices, s.withCDIName(reference)...)
	}
	return devices, nil
}

// step is one grant of a claim that is prepared.
type step struct {
	claimAsk
	held *grant.Grant // entered by an earlier Prepare; nil: not yet
}

// plan compares what a claim asks for with the grants that it has. It returns the grants to take,
// and the stale ones, which are to be released: the claim was allocated again, and the kubelet
// missed the end of the old allocation. An earlier Prepare may have been killed after some of the
// grants.
func plan(uid types.UID, asks []claimAsk, held []grant.Grant) (steps []step, stale []grant.ID, err error) {
	for _, w := range asOlderVersion(uid, asks, held) {
		steps = append(steps, step{claimAsk: w})
	}
	for _, g := range held {
		i := slices.IndexFunc(steps, func(s step) bool { return s.ask.Owner == g.Owner })
		switch {
		case i >= 0 && g.Draining:
			return nil, nil, fmt.Errorf("the claim's grant %s was released, and a container still uses it",
				g.ID)
		case i >= 0 && steps[i].matches(g):
			steps[i].held = &g
		case g.Draining, len(g.Bindings) > 0:
			return nil, nil, fmt.Errorf("the claim was allocated anew while a container uses its grant %s",
				g.ID)
		default:
			stale = append(stale, g.ID)
		}
	}
	return steps, stale, nil
}

// asOlderVersion returns what a claim asks for in the form in which an older version has entered
// it. Such a version made all requests one grant, and the kubelet has its name. If none has entered
// it, the asks are returned as they are.
func asOlderVersion(uid types.UID, asks []claimAsk, held []grant.Grant) []claimAsk {
	whole := asOneGrant(uid, asks)
	if slices.ContainsFunc(asks, func(w claimAsk) bool { return w.ask.Owner == whole.ask.Owner }) ||
		!slices.ContainsFunc(held, func(g grant.Grant) bool {
			return g.Owner == whole.ask.Owner && whole.matches(g)
		}) {
		return asks
	}
	return []claimAsk{whole}
}

// take returns the reference of a grant that the claim has, or enters the grant.
func (d *Driver) take(s step) (grant.Reference, error) {
	if s.held == nil {
		return d.Ledger.EnterWithCDI(s.ask)
	}
	if err := d.tie(*s.held, s.ask.For); err != nil {
		return grant.Reference{}, err
	}
	return d.Ledger.WriteCDI(*s.held)
}

// UnprepareResourceClaims releases the claims' grants. A claim without a grant needs nothing. A
// grant that a running pod of its claim uses is kept.
func (d *Driver) UnprepareResourceClaims(_ context.Context,
	claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = d.unprepare(claim.UID)
	}
	return results, nil
}

func (d *Driver) unprepare(uid types.UID) error {
	unlock, err := d.lockClaim(uid)
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
	var failed error
	for _, g := range grantsOf(uid, o.Grants) {
		if d.podUses(uid, g) {
			d.Log.Info("kept: a pod of the claim still uses it", "uid", uid, "grant", g.ID)
			continue
		}
		if err := b.ReleaseWithCDI(g.ID); err != nil {
			failed = errors.Join(failed, fmt.Errorf("gpuledger: %w", err))
			continue
		}
		d.Log.Info("released", "uid", uid, "grant", g.ID)
	}
	return failed
}

// podUses reports whether a pod that a claim is reserved for uses a grant of it. The kubelet stops
// the containers of a pod before it unprepares the pod's claims. But if a pod was deleted before
// its claim was prepared for it, the kubelet unprepares the claim although the one other pod of the
// claim runs (unprepareResources in pkg/kubelet/cm/dra/manager.go, Kubernetes 1.36). Reclaim
// releases such a grant when the claim has ended.
func (d *Driver) podUses(uid types.UID, g grant.Grant) bool {
	if r, known := d.pods.known(uid); known && r.empty || len(g.For) == 0 || g.Draining {
		return false
	}
	return slices.ContainsFunc(g.Bindings, func(b grant.Binding) bool { return !b.Left && g.InTies(b.Pod) })
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
