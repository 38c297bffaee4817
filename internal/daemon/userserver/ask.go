package userserver

import (
	"context"
	"net/http"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/daemon/userqueue"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

// maxWait is how long a request waits at most.
const maxWait = 7 * 24 * time.Hour

// serveAsk answers a request at once, or when its turn has come.
func (s *Server) serveAsk(ctx context.Context, w http.ResponseWriter, p peer, ask admission.Ask,
	request users.Ask, of userqueue.Program) {
	ctx, end := s.again.begin(ctx, identity{p.uid, p.root, request.Secret})
	defer end()
	n := s.Node()
	answer := func(g grant.Grant, err error) {
		if err != nil {
			s.refused(n, p, err)
			_ = send(w, users.Event{Error: users.ErrorOf(err)})
			return
		}
		node.RecordUser(n, "granted", ask.User, g.ID, nil)
		s.updateNodes(ctx) // so that what is granted can be used once the client knows it
		if send(w, users.Event{Grant: &users.List(g)[0],
			Sentence: grants.Sentence(n, "granted", g)}) != nil && !isSentAgain(ctx) {
			userqueue.TakeBack(n, ask.User, g.ID) // the client is gone
		}
	}
	var g grant.Grant
	var waiter *userqueue.Waiter
	var err error
	if !s.inTurn(ctx, p, func() {
		g, waiter, err = s.queue.Ask(s.Node, s.Ledger, userqueue.Request{User: p.uid, Since: request.Since,
			Ask: ask, Waits: request.Wait > 0, For: of})
	}) {
		return
	}
	n = s.Node() // the configuration may be another one by now
	if waiter == nil {
		answer(g, err)
		return
	}
	out := s.wait(ctx, w, waiter, min(request.Wait, maxWait))
	switch {
	case out != nil:
		answer(out.Grant, out.Err)
	case ctx.Err() == nil:
		answer(g, err)
	}
}

// wait reports places until the request is granted, its time is over or the client is gone. nil: it
// was not granted.
func (s *Server) wait(ctx context.Context, to http.ResponseWriter, w *userqueue.Waiter,
	long time.Duration) *userqueue.Outcome {
	over := time.NewTimer(long)
	defer over.Stop()
	last, lastOf := 0, 0
	for {
		if place, of := s.queue.Place(w); place > 0 && (place != last || of != lastOf) {
			last, lastOf = place, of
			if send(to, users.Event{Place: place, Of: of}) != nil {
				return s.abandon(ctx, w)
			}
		}
		select {
		case <-w.Woken():
			if place, _ := s.queue.Place(w); place == 0 {
				return s.queue.Leave(w)
			}
		case <-over.C:
			return s.queue.Leave(w)
		case <-ctx.Done():
			return s.abandon(ctx, w)
		}
	}
}

// abandon takes a request back whose client is gone, and what it was granted meanwhile.
func (s *Server) abandon(ctx context.Context, w *userqueue.Waiter) *userqueue.Outcome {
	out := s.queue.Leave(w)
	if out == nil || out.Err != nil {
		return nil
	}
	if s.isEnding() || isSentAgain(ctx) { // the request finds the grant when it is sent again
		return nil
	}
	userqueue.TakeBack(s.Node(), w.Ask.User, out.Grant.ID)
	return nil
}

func (s *Server) isEnding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}
