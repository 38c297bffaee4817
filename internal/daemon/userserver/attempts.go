package userserver

import (
	"context"
	"errors"
	"sync"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// errSentAgain is why a request is not served any more whose client has sent it again.
var errSentAgain = errors.New("the request was sent again")

// attempts are the requests that are being served. Those with the same secret are attempts at one
// request: a client sends it again where its connection ended, and that is not noticed at once. One
// of them is served at a time, and the last one finds what was granted to those before.
type attempts struct {
	mu   sync.Mutex
	last map[identity]*attempt
}

// identity is that of a request.
type identity struct {
	uid    uint32
	root   bool
	secret string
}

type attempt struct {
	cancel context.CancelCauseFunc
	over   chan struct{} // closed when nothing of it is under way any more
	// undelivered is a grant for the request that no client knows, of this attempt or of one before
	undelivered grant.ID
}

// begin ends an earlier attempt at the request and waits until it is over. The context ends with
// errSentAgain when there is a later one.
func (a *attempts) begin(ctx context.Context, who identity) (own context.Context, this *attempt,
	end func()) {
	own, cancel := context.WithCancelCause(ctx)
	this = &attempt{cancel: cancel, over: make(chan struct{})}
	a.mu.Lock()
	before := a.last[who]
	if a.last == nil {
		a.last = map[identity]*attempt{}
	}
	a.last[who] = this
	a.mu.Unlock()
	if before != nil {
		before.cancel(errSentAgain)
		<-before.over
		this.undelivered = before.undelivered
	}
	return own, this, func() {
		a.mu.Lock()
		if a.last[who] == this {
			delete(a.last, who)
		}
		a.mu.Unlock()
		cancel(nil)
		close(this.over)
	}
}

// isSentAgain reports whether there is a later attempt, which answers for what this one was
// granted.
func isSentAgain(ctx context.Context) bool { return context.Cause(ctx) == errSentAgain }
