package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// Follow keeps the claims' grants tied to the pods that the claims are reserved for, until the
// context ends. It reads the ledger at every interval, because another driver may have prepared a
// claim. It reads it at once when this driver has prepared a claim or learned of a change.
func (d *Driver) Follow(ctx context.Context, interval time.Duration) { d.follower().run(ctx, interval) }

// follower watches the claims with grants, and keeps the grants' ties.
type follower struct {
	ledger nodeledger.Ledger
	client kubernetes.Interface // for watching claims
	log    *slog.Logger
	pods   *pods
	locks  *claimLocks
}

func (d *Driver) follower() follower {
	return follower{d.Ledger, d.watcher(), d.Log, &d.pods, &d.locks}
}

func (d *Driver) watcher() kubernetes.Interface {
	if d.Watch != nil {
		return d.Watch
	}
	return d.Client
}

func (f follower) run(ctx context.Context, interval time.Duration) {
	var all sync.WaitGroup
	defer all.Wait()
	followed := map[types.UID]context.CancelFunc{}
	for last := ""; ; {
		held, err := f.retie()
		if err != nil && err.Error() != last {
			f.log.Warn("pods of claims", "error", err)
		}
		last = fmt.Sprint(err)
		for uid, of := range held {
			if _, is := followed[uid]; !is {
				one, end := context.WithCancel(ctx)
				followed[uid] = end
				all.Go(func() { f.follow(one, of[0]) })
			}
		}
		for uid, end := range followed {
			if _, is := held[uid]; !is && err == nil {
				end()
				delete(followed, uid)
			}
		}
		if err == nil {
			f.pods.keep(held)
		}
		select {
		case <-ctx.Done():
			return
		case <-f.pods.signals():
			f.gather()
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

func (f follower) gather() {
	began := time.Now()
	time.Sleep(leastGather)
	for f.locks.busy() && time.Since(began) < mostGather {
		time.Sleep(reportPause)
	}
}

// retie updates the grants' ties to what is known of their claims. It returns the grants by claim.
func (f follower) retie() (held map[types.UID][]grant.Grant, failed error) {
	n := f.ledger.Open()
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
		if !is || g.Draining || !f.pods.canTie(p, f.log) && g.Mode != grant.Exclusive {
			continue
		}
		held[uid] = append(held[uid], g)
		if !f.pods.canTie(p, f.log) {
			continue
		}
		r, known := f.pods.known(uid)
		// If the last pods are gone, the ties stay: without ties every pod could use the grant.
		if !known || r.empty && len(g.For) > 0 {
			continue
		}
		failed = errors.Join(failed, f.ledger.Tie(g, r.pods, f.log))
	}
	return held, failed
}

// The shortest and the longest wait between two attempts to watch a claim.
const (
	shortestWait = time.Second
	longestWait  = 30 * time.Second
)

// follow watches the claim of a grant until the context ends.
func (f follower) follow(ctx context.Context, g grant.Grant) {
	for wait, last := shortestWait, ""; ctx.Err() == nil; wait = min(2*wait, longestWait) {
		began := time.Now()
		err := f.watchClaim(ctx, g)
		if err != nil && ctx.Err() == nil {
			f.lookUp(ctx, g)
			if err.Error() != last {
				f.log.Warn("cannot watch the claim of a grant", "grant", g.ID, "error", err)
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
func (f follower) lookUp(ctx context.Context, g grant.Grant) {
	namespace, name, ok := claimName(g)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	uid, _ := claimOf(g)
	before, _ := f.pods.known(uid)
	if claim, err := f.client.ResourceV1().ResourceClaims(namespace).Get(ctx, name,
		metav1.GetOptions{}); err == nil {
		f.pods.restart(uid, before.version)
		f.pods.learn(claim)
		f.pods.signal()
	}
}

// watchClaim records the state of a claim and each change, until the API ends the watch. A claim
// that was deleted before the watch began is not shown.
func (f follower) watchClaim(ctx context.Context, g grant.Grant) error {
	namespace, name, ok := claimName(g)
	if !ok {
		return nil
	}
	uid, _ := claimOf(g)
	f.pods.show(uid, false)
	w, err := f.client.ResourceV1().ResourceClaims(namespace).Watch(ctx,
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
			claim, is := event.Object.(*resourceapi.ResourceClaim)
			switch {
			case !is:
			case event.Type == watch.Deleted:
				f.pods.show(claim.UID, false)
			default:
				if f.pods.learn(claim).version > versionOf(claim) {
					f.lookUp(ctx, g)
				}
				f.pods.show(claim.UID, true)
				f.pods.signal()
			}
		}
	}
}
