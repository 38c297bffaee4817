package daemon

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// clients are the connections that are open. Where there are too many the oldest that no answer is being written to is closed: whoever holds
// them open to keep others out holds his own, and one who asks at once, as Prometheus does, is heard.
type connections struct {
	max int

	mu    sync.Mutex
	open  map[net.Conn]connection
	count uint64
}

type connection struct {
	number   uint64 // in the order in which they came
	requests int    // requests that are being answered
}

type connKey struct{}

// serve has a server count its connections.
func (c *connections) limit(s *http.Server) {
	handler := s.Handler
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, conn)
	}
	s.ConnState = c.stateChanged
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _ := r.Context().Value(connKey{}).(net.Conn)
		c.countRequest(conn, 1)
		defer c.countRequest(conn, -1)
		handler.ServeHTTP(w, r)
	})
}

func (c *connections) stateChanged(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if c.open == nil {
			c.open = map[net.Conn]connection{}
		}
		c.count++
		c.open[conn] = connection{number: c.count}
		if len(c.open) > c.max {
			c.closeOldest()
		}
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
	}
}

func (c *connections) countRequest(conn net.Conn, more int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if is, open := c.open[conn]; open {
		is.requests += more
		c.open[conn] = is
	}
}

// drop closes one. The newest is never being answered yet, so there is always one.
func (c *connections) closeOldest() {
	var oldest net.Conn
	for conn, is := range c.open {
		if is.requests == 0 && (oldest == nil || is.number < c.open[oldest].number) {
			oldest = conn
		}
	}
	delete(c.open, oldest)
	_ = oldest.Close()
}
