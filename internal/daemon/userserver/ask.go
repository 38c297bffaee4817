package userserver

import (
	"context"
	"net/http"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/daemon/userqueue"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

// serveAsk answers a request at once, or when its turn has come. What is granted to a client that
// is gone is taken back, unless it comes again.
func (s *Server) serveAsk(ctx context.Context, w http.ResponseWriter, p peer, ask admission.Ask,
	request users.GrantRequest, of userqueue.Program) {
	ctx, this, end := s.attempts.begin(ctx, identity{p.uid, p.root, request.Secret})
	defer end()
	defer func() {
		if this.undelivered != "" && !isSentAgain(ctx) && !s.isEnding() {
			userqueue.TakeBack(s.Node(), ask.User, this.undelivered)
		}
	}()
	var out userqueue.Outcome
	var waiter *userqueue.Waiter
	try := func(waits bool) bool {
		return s.inTurn(ctx, p, func() {
			out.Grant, waiter, out.Err = s.queue.GrantOrWait(s.Node, s.Ledger, userqueue.Request{
				User: p.uid, Since: request.Since, Ask: ask, Waits: waits, For: of})
		})
	}
	if !try(request.Wait > 0) {
		return
	}
	gone := false
	if waiter != nil {
		var answer *userqueue.Outcome
		answer, gone = s.wait(ctx, w, waiter, min(request.Wait, users.MaxWait))
		switch {
		case answer != nil:
			out = *answer
		case !gone && !try(false): // its time is over: the answer is what refuses it now
			return
		}
	}
	if out.Err == nil {
		this.undelivered = out.Grant.ID
	}
	if gone {
		return
	}
	n := s.Node() // the configuration may be another one by now
	if out.Err != nil {
		s.refused(n, p, out.Err)
		_ = send(w, users.Event{Error: users.ErrorOf(out.Err)})
		return
	}
	node.RecordUser(n, "granted", ask.User, out.Grant.ID, nil)
	s.updateNodes(ctx) // so that what is granted can be used once the client knows it
	if send(w, users.Event{Grant: &users.List(out.Grant)[0],
		Sentence: grants.Sentence(n, "granted", out.Grant)}) == nil {
		this.undelivered = ""
	}
}

// wait reports places until the request is granted, its time is over or the client is gone. No
// outcome: it was not granted.
func (s *Server) wait(ctx context.Context, to http.ResponseWriter, w *userqueue.Waiter,
	long time.Duration) (out *userqueue.Outcome, gone bool) {
	over := time.NewTimer(long)
	defer over.Stop()
	last, lastOf := 0, 0
	for {
		if place, of := s.queue.Place(w); place > 0 && (place != last || of != lastOf) {
			last, lastOf = place, of
			if send(to, users.Event{Place: place, Of: of}) != nil {
				return s.queue.Leave(w), true
			}
		}
		select {
		case <-w.Woken():
			if place, _ := s.queue.Place(w); place == 0 {
				return s.queue.Leave(w), false
			}
		case <-over.C:
			return s.queue.Leave(w), false
		case <-ctx.Done():
			return s.queue.Leave(w), true
		}
	}
}

func (s *Server) isEnding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}
