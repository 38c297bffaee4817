package userserver

import (
	"context"
	"net/http"
	"sync"
)

// readsAtOnce is how many requests that change nothing and read the ledger are answered at a time,
// of one user or of those who share their connections. Each costs the more, the larger the ledger
// is, and a user can send one after another on all connections. The watch needs the ledger, too.
const readsAtOnce = 2

// reads has the requests of a pool that read the ledger wait for each other. Pools do not. The zero
// value has no request.
type reads struct {
	mu sync.Mutex
	of map[pool]*readers
}

type readers struct {
	answered chan struct{} // it has an element for each request that is being answered
	requests int           // that are being answered or wait for it
}

// begin waits for a place among the requests of a pool, which lasts until end is called. An error
// means that the client is gone.
func (r *reads) begin(ctx context.Context, of pool) (end func(), err error) {
	own := r.enter(of)
	select {
	case own.answered <- struct{}{}:
		return func() {
			<-own.answered
			r.leave(of, own)
		}, nil
	case <-ctx.Done():
		r.leave(of, own)
		return nil, ctx.Err()
	}
}

// beginRead waits until a request may read the ledger. It returns nil if the client is gone before.
// Root's requests on its own socket do not wait.
func (s *Server) beginRead(r *http.Request) (end func()) {
	p := peerOf(r)
	if p.root {
		return func() {}
	}
	end, _ = s.reads.begin(r.Context(), p.pool())
	return end
}

func (r *reads) enter(of pool) *readers {
	r.mu.Lock()
	defer r.mu.Unlock()
	own := r.of[of]
	if own == nil {
		if r.of == nil {
			r.of = map[pool]*readers{}
		}
		own = &readers{answered: make(chan struct{}, readsAtOnce)}
		r.of[of] = own
	}
	own.requests++
	return own
}

func (r *reads) leave(of pool, own *readers) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if own.requests--; own.requests == 0 {
		delete(r.of, of)
	}
}
