package userserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

// How many requests wait at most, of one user and in all, and for how long.
const (
	maxWaitingOfUser = 16
	maxWaiting       = 256
	maxWait          = 7 * 24 * time.Hour
)

// queue are the requests that wait. Users take turns; the requests of one user are in the order in
// which they began to wait. A request that cannot be granted now keeps no other from what is free.
type queue struct {
	mu      sync.Mutex
	waiting []*waiter
	last    uint32 // the user who was granted something last
	count   uint64
	turn    sync.Mutex // one request is granted at a time
}

// waiter is a request that waits.
type waiter struct {
	user   uint32
	since  time.Time // as the client says; it orders the requests of one user
	number uint64
	ask    admission.Ask   // without the quota
	of     *grants.Program // that the grant is for; nil: for containers
	wake   chan struct{}   // the outcome, or another place
	out    *outcome
}

type outcome struct {
	grant grant.Grant
	err   error
}

// order is the order in which those who wait are served: each user's first request, beginning with
// the user after the last one that was served, then each user's second one.
func order(waiting []*waiter, last uint32) []*waiter {
	byUser := map[uint32][]*waiter{}
	for _, w := range waiting {
		byUser[w.user] = append(byUser[w.user], w)
	}
	var turns []uint32
	for user, list := range byUser {
		turns = append(turns, user)
		slices.SortFunc(list, func(a, b *waiter) int {
			return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.number, b.number))
		})
	}
	slices.SortFunc(turns, func(a, b uint32) int {
		return cmp.Or(cmp.Compare(btoi(a <= last), btoi(b <= last)), cmp.Compare(a, b))
	})
	all := make([]*waiter, 0, len(waiting))
	for round := 0; len(all) < len(waiting); round++ {
		for _, user := range turns {
			if list := byUser[user]; round < len(list) {
				all = append(all, list[round])
			}
		}
	}
	return all
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// enter adds a request, where there is room for it.
func (q *queue) enter(user uint32, since time.Time, what waiter) (*waiter, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	own := 0
	for _, w := range q.waiting {
		own += btoi(w.user == user)
	}
	if own >= maxWaitingOfUser || len(q.waiting) >= maxWaiting {
		return nil, fmt.Errorf("cannot wait: %d requests of this user and %d in all wait already (at most "+
			"%d and %d)", own, len(q.waiting), maxWaitingOfUser, maxWaiting)
	}
	q.count++
	w := &waiter{user: user, since: since, number: q.count, ask: what.ask, of: what.of,
		wake: make(chan struct{}, 1)}
	q.waiting = append(q.waiting, w)
	for _, other := range q.waiting { // its turn may come before theirs
		other.poke()
	}
	return w, nil
}

// leave removes a request. It reports what became of it, if anything did.
func (q *queue) leave(w *waiter) *outcome {
	q.mu.Lock()
	q.waiting = slices.DeleteFunc(q.waiting, func(o *waiter) bool { return o == w })
	q.mu.Unlock()
	q.poke()
	q.turn.Lock() // it may be being granted
	defer q.turn.Unlock()
	return w.out
}

// place is the place of a request, from 1, and how many wait; 0 if it does not wait any more.
func (q *queue) place(w *waiter) (place, of int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Index(order(q.waiting, q.last), w) + 1, len(q.waiting)
}

// poke wakes all that wait, to look at their places.
func (q *queue) poke() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range q.waiting {
		w.poke()
	}
}

func (w *waiter) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// pass grants what those who wait can have now. Of each user only the first request is looked at.
// The ledger is read once, without its lock, and written only for what fits.
func (s *Server) pass(n *node.Node) error {
	q := &s.queue
	q.turn.Lock()
	defer q.turn.Unlock()
	for {
		q.mu.Lock()
		waiting := order(q.waiting, q.last)
		q.mu.Unlock()
		if len(waiting) == 0 {
			return nil
		}
		o, err := s.Ledger(n)
		if err != nil {
			return err
		}
		if !s.grantFirst(n, o, waiting) {
			return nil
		}
	}
}

// grantFirst grants the first request that fits, and reports whether there was one.
func (s *Server) grantFirst(n *node.Node, o grants.Overview, waiting []*waiter) bool {
	seen := map[uint32]bool{}
	for _, w := range waiting {
		if seen[w.user] {
			continue
		}
		seen[w.user] = true
		g, err := s.grantWaiting(n, o, w)
		if errors.Is(err, errLater) {
			continue
		}
		q := &s.queue
		q.mu.Lock()
		w.out, q.last = &outcome{g, err}, w.user
		q.waiting = slices.DeleteFunc(q.waiting, func(other *waiter) bool { return other == w })
		q.mu.Unlock()
		w.poke()
		q.poke()
		return true
	}
	return false
}

var errLater = errors.New("it goes on waiting")

// grantWaiting grants a request that waits, if that is possible by now. errLater: not yet.
func (s *Server) grantWaiting(n *node.Node, o grants.Overview, w *waiter) (g grant.Grant, err error) {
	ask, err := inQuota(n, w.ask)
	if err != nil {
		return g, err
	}
	_, err = admission.Place(ask, "", o.View, o.Inventory, n.Policy)
	if err == nil || !admission.Later(ask, err, bare(o), o.Inventory, n.Policy) {
		g, err = s.enter(n, ask, w.of)
	}
	if err != nil && admission.Later(ask, err, bare(o), o.Inventory, n.Policy) {
		return g, errLater // another process may have been faster
	}
	return g, err
}

// bare is the node without any grants and use.
func bare(o grants.Overview) grant.View { return grant.View{Now: o.Now} }

// serveAsk answers a request at once, or when its turn has come.
func (s *Server) serveAsk(ctx context.Context, w http.ResponseWriter, p peer, what waiter,
	request users.Ask) {
	n, ask := s.Node(), what.ask
	answer := func(g grant.Grant, err error) {
		if err != nil {
			node.RecordUser(n, "refused", p.uid, "", err)
			_ = send(w, users.Event{Error: users.ErrorOf(err)})
			return
		}
		node.RecordUser(n, "granted", ask.User, g.ID, nil)
		s.updateNodes(ctx) // so that what is granted can be used once the client knows it
		if send(w, users.Event{Grant: &users.List(g)[0],
			Sentence: grants.Sentence(n, "granted", g)}) != nil {
			if released, _ := grants.ReleaseIdle(n, g.ID); released { // the client is gone
				node.RecordUser(n, "released", ask.User, g.ID, nil)
			}
		}
	}
	if g, found := grants.FindBySecret(n, ask.User, ask.Secret); found {
		answer(g, rejoin(n, g, what.of))
		return
	}
	_ = s.pass(n) // those who wait come first
	n = s.Node()  // the configuration may be another one by now
	bounded, err := inQuota(n, ask)
	if err != nil {
		answer(grant.Grant{}, err)
		return
	}
	s.queue.turn.Lock()
	g, err := s.enter(n, bounded, what.of)
	s.queue.turn.Unlock()
	if err == nil || request.Wait <= 0 {
		answer(g, err)
		return
	}
	o, e := grants.Read(n)
	if e != nil || !admission.Later(bounded, err, bare(o), o.Inventory, n.Policy) {
		answer(g, err)
		return
	}
	waiting, e := s.queue.enter(p.uid, request.Since, what)
	if e != nil {
		answer(g, e)
		return
	}
	out := s.wait(ctx, w, waiting, min(request.Wait, maxWait))
	switch {
	case out != nil:
		answer(out.grant, out.err)
	case ctx.Err() == nil:
		answer(g, err)
	}
}

// wait reports places until the request is granted, its time is over or the client is gone. nil: it
// was not granted.
func (s *Server) wait(ctx context.Context, to http.ResponseWriter, w *waiter, long time.Duration) *outcome {
	over := time.NewTimer(long)
	defer over.Stop()
	last, lastOf := 0, 0
	for {
		if place, of := s.queue.place(w); place > 0 && (place != last || of != lastOf) {
			last, lastOf = place, of
			if send(to, users.Event{Place: place, Of: of}) != nil {
				return s.abandon(w)
			}
		}
		select {
		case <-w.wake:
			if place, _ := s.queue.place(w); place == 0 {
				return s.queue.leave(w)
			}
		case <-over.C:
			return s.queue.leave(w)
		case <-ctx.Done():
			return s.abandon(w)
		}
	}
}

// abandon takes a request back whose client is gone, and what it was granted meanwhile.
func (s *Server) abandon(w *waiter) *outcome {
	out := s.queue.leave(w)
	if out == nil || out.err != nil || s.isEnding() { // else the client sends it again, and finds the grant
		return nil
	}
	n := s.Node()
	if released, _ := grants.ReleaseIdle(n, out.grant.ID); released {
		node.RecordUser(n, "released", w.ask.User, out.grant.ID, nil)
	}
	return nil
}

func (s *Server) isEnding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}
