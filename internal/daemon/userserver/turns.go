package userserver

import (
	"context"
	"sync"
	"time"
)

// How often a user may change the ledger: so many times at once, and once in a while after that.
// Each change has a line in the audit log, which one user must not fill, and takes the ledger's
// lock, for which others wait.
const (
	changesAtOnce = 128
	changeEvery   = time.Second
)

// turns has the requests of a user that change the ledger served one after another, and not too
// often. Requests of different users do not wait for each other. As many wait as the user has
// connections. The zero value has no request.
type turns struct {
	mu sync.Mutex
	of map[uint32]*turn
}

type turn struct {
	taken    chan struct{} // it has an element while a request has the turn
	requests int           // that have it or wait for it
	paid     time.Time     // until when the changes so far would have taken, one at a time
}

// take waits for the turn of a user, which lasts until end is called. An error means that the
// client is gone.
func (t *turns) take(ctx context.Context, uid uint32) (end func(), err error) {
	own := t.enter(uid)
	select {
	case own.taken <- struct{}{}:
	case <-ctx.Done():
		t.leave(own)
		return nil, ctx.Err()
	}
	end = func() {
		<-own.taken
		t.leave(own)
	}
	rest := time.NewTimer(t.pay(own, time.Now()))
	defer rest.Stop()
	select {
	case <-rest.C:
		return end, nil
	case <-ctx.Done():
		end()
		return nil, ctx.Err()
	}
}

// inTurn does what changes the ledger when it is the caller's turn. It reports false if the client
// is gone before. Root has no turns: its requests in the queue are its administrators'.
func (s *Server) inTurn(ctx context.Context, p peer, do func()) bool {
	if !p.root {
		end, err := s.turns.take(ctx, p.uid)
		if err != nil {
			return false
		}
		defer end()
	}
	do()
	return true
}

func (t *turns) enter(uid uint32) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.of[uid]
	if own == nil {
		if t.of == nil {
			t.of = map[uint32]*turn{}
		}
		own = &turn{taken: make(chan struct{}, 1)}
		t.of[uid] = own
	}
	own.requests++
	return own
}

func (t *turns) leave(own *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own.requests--
}

// pay counts a change, and returns how long it has to wait.
func (t *turns) pay(own *turn, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own.paid.Before(now) {
		own.paid = now
	}
	own.paid = own.paid.Add(changeEvery)
	return own.paid.Sub(now) - changesAtOnce*changeEvery
}

// forget drops the users who have no request, and may make as many changes as any other.
func (t *turns) forget(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for uid, own := range t.of {
		if own.requests == 0 && !own.paid.After(now) {
			delete(t.of, uid)
		}
	}
}
