package httpserver

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// connections are the open connections of a server. When there are too many, the oldest without a
// request in progress is closed. So a client that keeps many open loses its own, and one that
// connects and asks at once, such as Prometheus, is answered.
type connections struct {
	max int

	mu    sync.Mutex
	open  map[net.Conn]connection
	count uint64
}

type connection struct {
	number   uint64 // in the order of their beginnings
	requests int    // requests that are being answered
}

type connKey struct{}

// limit makes a server count its connections.
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

// closeOldest closes one. The newest has no request in progress yet, so there always is one.
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
