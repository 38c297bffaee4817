package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// tiesOf returns the ties of a claim's grants: its namespace, and the pods that the claim is
// reserved for. A claim can also be reserved for others, such as a group of pods, whose members are
// not known here. Then the namespace is the only tie.
func tiesOf(claim *resourceapi.ResourceClaim) []grant.Tie {
	to := []grant.Tie{grant.NamespaceTie(claim.Namespace)}
	for _, r := range claim.Status.ReservedFor {
		if r.APIGroup != "" || r.Resource != "pods" {
			return to[:1]
		}
		to = append(to, grant.PodTie(string(r.UID)))
	}
	slices.Sort(to[1:])
	return slices.Compact(to)
}

// pods holds what the API last said about the claims with grants: the pods that they are reserved
// for. The kubelet does not prepare a claim again when another pod is added to it. So the driver
// watches each claim.
type pods struct {
	mu      sync.Mutex
	claims  map[types.UID]reserved
	changed chan struct{} // has an element when a claim may have changed
	unable  sync.Once     // logs once that grants cannot be tied here
}

// reserved is what a claim was reserved for.
type reserved struct {
	version uint64 // the claim's resource version
	pods    []grant.Tie
	empty   bool
	// memory that the claim has of this driver's devices, by their names
	consumed map[string]grant.Bytes
	// no grant was found for the claim since
	without bool
}

// consumedBy returns what a claim has of each device.
func consumedBy(claim *resourceapi.ResourceClaim) map[string]grant.Bytes {
	consumed := map[string]grant.Bytes{}
	if claim.Status.Allocation == nil {
		return consumed
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == DriverName {
			amount := r.ConsumedCapacity[memory]
			consumed[r.Device] += grant.Bytes(amount.Value())
		}
	}
	return consumed
}

// learn records a claim unless a newer version is known. It returns the newest.
func (p *pods) learn(claim *resourceapi.ResourceClaim) reserved {
	p.mu.Lock()
	defer p.mu.Unlock()
	version := versionOf(claim)
	now := reserved{version: version, pods: tiesOf(claim), empty: len(claim.Status.ReservedFor) == 0,
		consumed: consumedBy(claim)}
	if before, known := p.claims[claim.UID]; known && before.version > version {
		return before
	}
	if p.claims == nil {
		p.claims = map[types.UID]reserved{}
	}
	p.claims[claim.UID] = now
	return now
}

// versionOf returns a claim's resource version. Those of one resource are ordered (KEP 5504).
func versionOf(claim *resourceapi.ResourceClaim) uint64 {
	version, _ := strconv.ParseUint(claim.ResourceVersion, 10, 64)
	return version
}

// restart makes the next version of a claim count as newer than this one.
func (p *pods) restart(claim types.UID, version uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r, known := p.claims[claim]; known && r.version == version {
		r.version = 0
		p.claims[claim] = r
	}
}

func (p *pods) known(claim types.UID) (reserved, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, known := p.claims[claim]
	return r, known
}

// consumed returns what a claim has of each device; see Allocations.
func (p *pods) consumed(claim types.UID) (map[string]grant.Bytes, bool) {
	r, known := p.known(claim)
	return r.consumed, known
}

// keep removes the claims that were twice not among these. A claim that is being prepared is known
// before its grant is in the ledger, and may be missing once.
func (p *pods) keep(held map[types.UID][]grant.Grant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, r := range p.claims {
		_, is := held[uid]
		if !is && r.without {
			delete(p.claims, uid)
			continue
		}
		r.without = !is
		p.claims[uid] = r
	}
}

func (p *pods) signals() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{}, 1)
	}
	return p.changed
}

// signal makes Follow look again now.
func (p *pods) signal() {
	select {
	case p.signals() <- struct{}{}:
	default:
	}
}

// mayUse returns the ties of a claim that is prepared.
func (d *Driver) mayUse(claim *resourceapi.ResourceClaim, p nodeledger.Content) ([]grant.Tie, error) {
	r := d.pods.learn(claim)
	switch {
	case !d.ties(p):
		return nil, nil
	case r.empty:
		return nil, errors.New("the claim is reserved for no pod")
	}
	return r.pods, nil
}

// tie sets the ties of an existing grant to the pods of a claim that is prepared again.
func (d *Driver) tie(g grant.Grant, to []grant.Tie) error {
	// Nothing can be tied here now; existing ties stay.
	if to == nil {
		return nil
	}
	return d.Ledger.Tie(g, to, d.Log)
}

// ties reports whether grants can be tied here, and logs once if not.
func (d *Driver) ties(p nodeledger.Content) bool {
	if p.CanTie() {
		return true
	}
	d.pods.unable.Do(func() {
		d.Log.Warn(
			"the engine of this node does not prove which pod a container belongs to, so grants are not "+
				"tied to the pods of their claims: a container that has read a reference can use its grant",
			"engine", p.Node.Policy.Engine)
	})
	return false
}

// Follow keeps the claims' grants tied to the pods that the claims are reserved for, until the
// context ends. It reads the ledger at every interval, because another driver may have prepared a
// claim. It reads it at once when this driver has prepared a claim or learned of a change.
func (d *Driver) Follow(ctx context.Context, interval time.Duration) {
	var all sync.WaitGroup
	defer all.Wait()
	followed := map[types.UID]context.CancelFunc{}
	for last := ""; ; {
		held, err := d.retie()
		if err != nil && err.Error() != last {
			d.Log.Warn("pods of claims", "error", err)
		}
		last = fmt.Sprint(err)
		for uid, of := range held {
			if _, is := followed[uid]; !is {
				one, end := context.WithCancel(ctx)
				followed[uid] = end
				all.Go(func() { d.follow(one, of[0]) })
			}
		}
		for uid, end := range followed {
			if _, is := held[uid]; !is && err == nil {
				end()
				delete(followed, uid)
			}
		}
		if err == nil {
			d.pods.keep(held)
		}
		select {
		case <-ctx.Done():
			return
		case <-d.pods.signals():
			d.gather()
		case <-time.After(interval):
		}
	}
}

// How long Follow waits for more changes before it reads the ledger: at least and, while claims are
// prepared or given up, at most. Reading it and watching their claims would take the processor from
// these. Their pods' containers come later. A create waits two seconds for a tie.
const (
	leastGather = 100 * time.Millisecond
	mostGather  = 600 * time.Millisecond
)

func (d *Driver) gather() {
	began := time.Now()
	time.Sleep(leastGather)
	for d.locks.busy() && time.Since(began) < mostGather {
		time.Sleep(reportPause)
	}
}

// retie updates the grants' ties to what is known of their claims. It returns the grants by claim.
func (d *Driver) retie() (held map[types.UID][]grant.Grant, failed error) {
	n := d.Ledger.Open()
	if n.Broken != nil {
		return nil, n.Broken
	}
	o, err := nodeledger.ReadNode(n)
	if err != nil {
		return nil, err
	}
	p := nodeledger.Content{Overview: o, Node: n}
	held = map[types.UID][]grant.Grant{}
	for _, g := range p.EnteredBy(Source) {
		uid, is := claimOf(g)
		// What a claim for a whole GPU has of its device must be known for publishing, too.
		if !is || g.Draining || !d.ties(p) && g.Mode != grant.Exclusive {
			continue
		}
		held[uid] = append(held[uid], g)
		if !d.ties(p) {
			continue
		}
		r, known := d.pods.known(uid)
		// If the last pods are gone, the ties stay: without ties every pod could use the grant.
		if !known || r.empty && len(g.For) > 0 {
			continue
		}
		failed = errors.Join(failed, d.Ledger.Tie(g, r.pods, d.Log))
	}
	return held, failed
}

// The shortest and the longest wait between two attempts to watch a claim.
const (
	shortestWait = time.Second
	longestWait  = 30 * time.Second
)

// follow watches the claim of a grant until the context ends.
func (d *Driver) follow(ctx context.Context, g grant.Grant) {
	for wait, last := shortestWait, ""; ctx.Err() == nil; wait = min(2*wait, longestWait) {
		began := time.Now()
		err := d.watchClaim(ctx, g)
		if err != nil && ctx.Err() == nil {
			d.lookUp(ctx, g)
			if err.Error() != last {
				d.Log.Warn("cannot watch the claim of a grant", "grant", g.ID, "error", err)
			}
			last = err.Error()
		}
		// The API ends each watch within an hour. With the role of an older version a driver can
		// get claims, but not watch them.
		if time.Since(began) > longestWait || apierrors.IsForbidden(err) {
			wait = shortestWait
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// lookUp reads a claim that cannot be watched, or whose watch reports an older version than is
// known. A watch may be late, but the API reads a single claim from etcd. So if that is older than
// what was known before, etcd was restored from a backup, and it counts.
func (d *Driver) lookUp(ctx context.Context, g grant.Grant) {
	namespace, name, ok := claimName(g)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	uid, _ := claimOf(g)
	before, _ := d.pods.known(uid)
	if claim, err := d.watcher().ResourceV1().ResourceClaims(namespace).Get(ctx, name,
		metav1.GetOptions{}); err == nil {
		d.pods.restart(uid, before.version)
		d.pods.learn(claim)
		d.pods.signal()
	}
}

func (d *Driver) watcher() kubernetes.Interface {
	if d.Watch != nil {
		return d.Watch
	}
	return d.Client
}

// watchClaim records the state of a claim and each change, until the API ends the watch.
func (d *Driver) watchClaim(ctx context.Context, g grant.Grant) error {
	namespace, name, ok := claimName(g)
	if !ok {
		return nil
	}
	w, err := d.watcher().ResourceV1().ResourceClaims(namespace).Watch(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, more := <-w.ResultChan():
			if !more {
				return nil
			}
			if event.Type == watch.Error {
				return apierrors.FromObject(event.Object)
			}
			// An object of the same name with another UID is another claim, and is recorded as
			// such.
			if claim, is := event.Object.(*resourceapi.ResourceClaim); is && event.Type != watch.Deleted {
				if d.pods.learn(claim).version > versionOf(claim) {
					d.lookUp(ctx, g)
				}
				d.pods.signal()
			}
		}
	}
}
