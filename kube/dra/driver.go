package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpuledger/gpuledger/kube/book"
)

// Driver answers the kubelet of one node. It remembers nothing but what the API tells it again: all else that it knows is in the ledger, in the
// grants' CDI files and in the book's references, so another process can take over between any two calls.
type Driver struct {
	Book   book.Book
	Node   string // its name in the cluster, and that of the pool
	Client kubernetes.Interface
	Log    *slog.Logger
	Broken func(error) // is told that nobody serves the kubelet any more, so that another process may begin; nil: nobody wants to know

	last   atomic.Pointer[book.Book] // by the last configuration that could be read; nil: none could yet
	pods   pods                      // of the claims
	mu     sync.Mutex                // one claim is prepared or given up at a time; see turn
	pace   pace                      // of publishing
	failed atomic.Bool               // the API may not have taken what was published last
	known  []resourceslice.Slice     // what the node had when it could tell; nil: it could not yet
	node   types.UID                 // of the Node that the slices belong to; "": not known yet
}

// turn waits until nobody else prepares or gives up a claim of this node, in this process or in another: an update starts the new
// driver before it ends the old.
func (d *Driver) turn() (over func(), err error) {
	d.mu.Lock()
	end, err := d.Book.Lock()
	if err != nil {
		d.mu.Unlock()
		return nil, err
	}
	return func() { end(); d.mu.Unlock() }, nil
}

// read gives the ledger and the inventory.
func (d *Driver) read() (book.Page, error) {
	p, err := d.Book.Read()
	if p.Node.Broken == nil {
		last := d.Book.As(p)
		d.last.Store(&last)
	}
	return p, err
}

// readable is the book by a configuration that can be read: an administrator's typing error must not keep pods from ending.
func (d *Driver) readable() (book.Book, error) {
	broken := d.Book.Open().Broken
	if broken == nil {
		return d.Book, nil
	}
	if last := d.last.Load(); last != nil {
		return *last, nil
	}
	return d.Book, broken
}

// PrepareResourceClaims enters a grant for each claim and offers it as a CDI device. A claim that cannot be had is an error of
// its own, which the kubelet shows in the pod's events.
func (d *Driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(claim)
		if err != nil {
			err = fmt.Errorf("gpuledger: %w", err)
			d.Log.Warn("cannot prepare", "namespace", claim.Namespace, "claim", claim.Name, "uid", claim.UID, "error", err)
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

func (d *Driver) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	over, err := d.turn()
	if err != nil {
		return nil, err
	}
	defer over()
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
	defer d.pods.change() // more pods can come to it from now on
	g, held := p.Held(w.ask.Owner)
	switch {
	case held && g.Draining:
		return nil, fmt.Errorf("the claim's grant %s was released, and a container still uses it", g.ID)
	case held && w.is(g):
		if err := d.tie(g, w.ask.For); err != nil {
			return nil, err
		}
		reference, err := d.Book.ExposeAgain(g)
		if err != nil {
			return nil, err
		}
		return w.named(reference), nil
	case held && len(g.Bindings) > 0:
		return nil, fmt.Errorf("the claim was allocated anew while a container uses its grant %s", g.ID)
	case held: // allocated anew, and the kubelet missed the end of the old allocation
		if err := d.Book.Withdraw(g.ID); err != nil {
			return nil, err
		}
	}
	reference, err := d.Book.EnterExposed(w.ask)
	if err != nil {
		return nil, err
	}
	d.Log.Info("prepared", "namespace", claim.Namespace, "claim", claim.Name, "uid", claim.UID, "grant", reference.ID)
	return w.named(reference), nil
}

// UnprepareResourceClaims gives the claims' grants up. A claim that holds none is done already.
func (d *Driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = d.unprepare(string(claim.UID))
	}
	return results, nil
}

func (d *Driver) unprepare(uid string) error {
	over, err := d.turn()
	if err != nil {
		return err
	}
	defer over()
	b, err := d.readable()
	if err != nil {
		return err
	}
	n := b.Open()
	o, err := n.Overview() // the inventory may be anything: giving up needs none
	if err != nil {
		return err
	}
	g, held := book.Page{Overview: o, Node: n}.Held(owner(uid))
	if !held {
		return nil
	}
	if err := b.Withdraw(g.ID); err != nil {
		return fmt.Errorf("gpuledger: %w", err)
	}
	d.Log.Info("released", "uid", uid, "grant", g.ID)
	return nil
}

// HandleError logs what goes wrong in the background. Slices that the API does not take end nothing: grants are entered without them, too. They are
// told again within a minute: the library tries again by itself, but later and later, up to a quarter of an hour, and after an API server's absence
// pods would be placed by what was so before it. A field that the API drops it drops again.
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
