// Package userqueue is the queue of the users' requests that wait for a grant. It grants what fits,
// in turns, within the users' quotas, and releases what users leave idle (docs/users.md). Package
// userserver answers users; this package has no sockets and no clock.
package userqueue

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

// How many requests wait at most, of one user and in all.
const (
	maxWaitingOfUser = 16
	maxWaiting       = 256
)

// Queue are the requests that wait. Users take turns; the requests of one user are in the order in
// which they began to wait. A request that cannot be granted now keeps no other from what is free.
// The zero value is an empty queue.
type Queue struct {
	mu      sync.Mutex
	waiting []*Waiter
	last    uint32 // the user who was granted something last
	count   uint64
	turn    host.Mutex // one request is granted at a time
	idle    map[grant.ID]idleness
}

// Request is what a user asks for.
type Request struct {
	User  uint32
	Since time.Time     // as the client says; it orders the requests of one user
	Ask   admission.Ask // without the quota
	Waits bool
	For   Program // nil: for containers
}

// Program is a running program that a grant is for.
type Program interface {
	// Enter enters its grant and has the program use it.
	Enter(*node.Node, admission.Ask) (grant.Grant, error)
	// Rejoin has the program use its grant whose answer was lost.
	Rejoin(*node.Node, grant.Grant) error
}

// Waiter is a request that waits.
type Waiter struct {
	Request
	number uint64
	wake   chan struct{}
	out    *Outcome
}

// Outcome is what became of a request.
type Outcome struct {
	Grant grant.Grant
	Err   error
}

// Woken receives when the request has an outcome or another place.
func (w *Waiter) Woken() <-chan struct{} { return w.wake }

// order is the order in which those who wait are served: each user's first request, beginning with
// the user after the last one that was served, then each user's second one.
func order(waiting []*Waiter, last uint32) []*Waiter {
	byUser := map[uint32][]*Waiter{}
	for _, w := range waiting {
		byUser[w.User] = append(byUser[w.User], w)
	}
	var turns []uint32
	for user, list := range byUser {
		turns = append(turns, user)
		slices.SortFunc(list, func(a, b *Waiter) int {
			return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.number, b.number))
		})
	}
	slices.SortFunc(turns, func(a, b uint32) int {
		return cmp.Or(cmp.Compare(btoi(a <= last), btoi(b <= last)), cmp.Compare(a, b))
	})
	all := make([]*Waiter, 0, len(waiting))
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
func (q *Queue) enter(r Request) (*Waiter, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	own := 0
	for _, w := range q.waiting {
		own += btoi(w.User == r.User)
	}
	if own >= maxWaitingOfUser || len(q.waiting) >= maxWaiting {
		return nil, fmt.Errorf("cannot wait: %d requests of this user and %d in all wait already (at most "+
			"%d and %d)", own, len(q.waiting), maxWaitingOfUser, maxWaiting)
	}
	q.count++
	w := &Waiter{Request: r, number: q.count, wake: make(chan struct{}, 1)}
	q.waiting = append(q.waiting, w)
	for _, other := range q.waiting { // its turn may come before theirs
		other.poke()
	}
	return w, nil
}

// Leave removes a request. It reports what became of it, if anything did.
func (q *Queue) Leave(w *Waiter) *Outcome {
	q.mu.Lock()
	q.waiting = slices.DeleteFunc(q.waiting, func(o *Waiter) bool { return o == w })
	q.mu.Unlock()
	q.Poke()
	q.turn.Lock() // it may be being granted
	defer q.turn.Unlock()
	return w.out
}

// Place is the place of a request, from 1, and how many wait; 0 if it does not wait any more.
func (q *Queue) Place(w *Waiter) (place, of int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Index(order(q.waiting, q.last), w) + 1, len(q.waiting)
}

// Poke wakes all that wait, to look at their places.
func (q *Queue) Poke() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range q.waiting {
		w.poke()
	}
}

func (w *Waiter) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// ordered returns those who wait, in the order in which they are served.
func (q *Queue) ordered() []*Waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	return order(q.waiting, q.last)
}

// served gives a request its outcome.
func (q *Queue) served(w *Waiter, out Outcome) {
	q.mu.Lock()
	w.out, q.last = &out, w.User
	q.waiting = slices.DeleteFunc(q.waiting, func(other *Waiter) bool { return other == w })
	q.mu.Unlock()
	w.poke()
	q.Poke()
}
