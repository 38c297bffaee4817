package dra

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/book"
)

// tiesOf are those who may use a claim's grant: the pods that the claim is reserved for, in its namespace. Of what else a claim can be reserved
// for, as a group of pods, the members are not known here: it is the namespace's then.
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

// pods are the pods of the claims whose grants the driver has entered, as the API has told of them last. The kubelet does not ask for a claim
// again that is prepared when another pod comes to it, so the driver watches each of them.
type pods struct {
	mu      sync.Mutex
	claims  map[types.UID]reserved
	changed chan struct{} // holds one where something may have
	unable  sync.Once     // it was said that nothing can be tied here
}

// reserved is whom a claim was reserved for.
type reserved struct {
	version uint64 // of the claim
	pods    []grant.Tie
	nobody  bool
}

// learn notes what a claim says, unless something newer is known, and returns the newest.
func (p *pods) learn(claim *resourceapi.ResourceClaim) reserved {
	p.mu.Lock()
	defer p.mu.Unlock()
	version, _ := strconv.ParseUint(claim.ResourceVersion, 10, 64) // in order for one resource (KEP 5504)
	now := reserved{version, tiesOf(claim), len(claim.Status.ReservedFor) == 0}
	if before, known := p.claims[claim.UID]; known && before.version > version {
		return before
	}
	if p.claims == nil {
		p.claims = map[types.UID]reserved{}
	}
	p.claims[claim.UID] = now
	return now
}

func (p *pods) known(claim types.UID) (reserved, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, known := p.claims[claim]
	return r, known
}

// keep forgets all but these. One that is being prepared now is told of again when it is watched.
func (p *pods) keep(held map[types.UID]grant.Grant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.claims, func(uid types.UID, _ reserved) bool { _, is := held[uid]; return !is })
}

func (p *pods) changes() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{}, 1)
	}
	return p.changed
}

// change has the follower look again, now.
func (p *pods) change() {
	select {
	case p.changes() <- struct{}{}:
	default:
	}
}

// mayUse are the ties of a claim that is prepared.
func (d *Driver) mayUse(claim *resourceapi.ResourceClaim, p book.Page) ([]grant.Tie, error) {
	r := d.pods.learn(claim)
	switch {
	case !d.ties(p):
		return nil, nil
	case r.nobody:
		return nil, errors.New("the claim is reserved for no pod")
	}
	return r.pods, nil
}

// tie has a grant that is there be for the pods of a claim that is prepared again.
func (d *Driver) tie(g grant.Grant, to []grant.Tie) error {
	if to == nil { // nothing can be tied here now; what is tied stays so
		return nil
	}
	return d.Book.Tie(g, to, d.Log)
}

// ties reports whether grants can be tied here, and says once where they cannot.
func (d *Driver) ties(p book.Page) bool {
	if p.Ties() {
		return true
	}
	d.pods.unable.Do(func() {
		d.Log.Warn("nobody vouches for pods on this node, so grants are not tied to those of their claims: whoever has read a reference can use its grant", "engine", p.Node.Policy.Engine)
	})
	return false
}

// Follow keeps the claims' grants tied to the pods that the claims are reserved for, until the context ends. It looks at the ledger at every
// interval, for what another driver has prepared, and at once where this one has prepared a claim or was told of a change.
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
		for uid, g := range held {
			if _, is := followed[uid]; !is {
				one, end := context.WithCancel(ctx)
				followed[uid] = end
				all.Go(func() { d.follow(one, g) })
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
		case <-d.pods.changes():
		case <-time.After(interval):
		}
	}
}

// retie brings the grants' ties up to what is known of their claims, and returns the grants by their claims.
func (d *Driver) retie() (held map[types.UID]grant.Grant, failed error) {
	n := d.Book.Open()
	if n.Broken != nil {
		return nil, n.Broken
	}
	o, err := n.Overview()
	if err != nil {
		return nil, err
	}
	p := book.Page{Overview: o, Node: n}
	held = map[types.UID]grant.Grant{}
	for _, g := range p.Of(Source) {
		uid, is := claimOf(g)
		if !is || g.Draining || !d.ties(p) {
			continue
		}
		held[uid] = g
		r, known := d.pods.known(uid)
		if !known || r.nobody && len(g.For) > 0 { // the last ones are gone, so it is nobody's; it is not everybody's again
			continue
		}
		failed = errors.Join(failed, d.Book.Tie(g, r.pods, d.Log))
	}
	return held, failed
}

// The waits between two attempts to watch a claim.
const (
	soon  = time.Second
	later = 30 * time.Second
)

// follow watches one claim until the context ends.
func (d *Driver) follow(ctx context.Context, g grant.Grant) {
	for wait, last := soon, ""; ctx.Err() == nil; wait = min(2*wait, later) {
		began := time.Now()
		err := d.watchClaim(ctx, g)
		if err != nil && ctx.Err() == nil {
			d.lookUp(ctx, g)
			if err.Error() != last {
				d.Log.Warn("cannot watch the claim of a grant", "grant", g.ID, "error", err)
			}
			last = err.Error()
		}
		// The API ends each watch within an hour. A role of an older version lets a driver get claims and not watch them.
		if time.Since(began) > later || apierrors.IsForbidden(err) {
			wait = soon
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// lookUp learns what a claim is, where it cannot be watched.
func (d *Driver) lookUp(ctx context.Context, g grant.Grant) {
	namespace, name, ok := place(g)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if claim, err := d.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{}); err == nil {
		d.pods.learn(claim)
		d.pods.change()
	}
}

// watchClaim learns what becomes of a claim, beginning with what it is, until the API ends that.
func (d *Driver) watchClaim(ctx context.Context, g grant.Grant) error {
	namespace, name, ok := place(g)
	if !ok {
		return nil
	}
	w, err := d.Client.ResourceV1().ResourceClaims(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
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
			if claim, is := event.Object.(*resourceapi.ResourceClaim); is && event.Type != watch.Deleted { // one of its name with another UID is another claim's
				d.pods.learn(claim)
				d.pods.change()
			}
		}
	}
}
