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

// turns serves the changes of a user one after another, and not too often. Users do not wait for
// each other. As many requests wait as the user has connections. The zero value has no request.
type turns struct {
	mu sync.Mutex
	of map[uint32]*turn
}

type turn struct {
	taken    chan struct{} // it has an element while a request has the turn
	requests int           // that have it or wait for it
	// chargedUntil is when the changes so far would have been made, one in each changeEvery
	chargedUntil time.Time
}

// take waits for the turn of a user, which lasts until end is called. An error means that the
// client is gone, and then nothing is charged.
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
	delay := time.NewTimer(t.delay(own, time.Now()))
	defer delay.Stop()
	select {
	case <-delay.C:
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil {
		end()
		return nil, err
	}
	t.charge(own, time.Now())
	return end, nil
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

// delay returns how long the next change has to wait.
func (t *turns) delay(own *turn, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return own.chargedUntil.Add(-(changesAtOnce - 1) * changeEvery).Sub(now)
}

// charge counts a change.
func (t *turns) charge(own *turn, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own.chargedUntil.Before(now) {
		own.chargedUntil = now
	}
	own.chargedUntil = own.chargedUntil.Add(changeEvery)
}

// forget drops the users who have no request, and may make as many changes as any other.
func (t *turns) forget(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for uid, own := range t.of {
		if own.requests == 0 && !own.chargedUntil.After(now) {
			delete(t.of, uid)
		}
	}
}
