package userserver

import (
	"context"
	"errors"
	"sync"
)

// errSentAgain is why a request is not served any more whose client has sent it again.
var errSentAgain = errors.New("the request was sent again")

// again has one at a time of the requests with the same secret, which are one request: its client
// sends it again where its connection ended, and that is not noticed at once. The last one is
// served, and finds what was granted to those before.
type again struct {
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
}

// begin ends an earlier request with this identity and waits until it is over. The context ends
// with errSentAgain when there is a later one.
func (a *again) begin(ctx context.Context, who identity) (own context.Context, end func()) {
	own, cancel := context.WithCancelCause(ctx)
	this := &attempt{cancel, make(chan struct{})}
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
	}
	return own, func() {
		a.mu.Lock()
		if a.last[who] == this {
			delete(a.last, who)
		}
		a.mu.Unlock()
		cancel(nil)
		close(this.over)
	}
}

// isSentAgain reports whether a later request finds what this one was granted.
func isSentAgain(ctx context.Context) bool { return context.Cause(ctx) == errSentAgain }
