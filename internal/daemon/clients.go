package daemon

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// clients are the connections that are open. Where there are too many the oldest that no answer is being written to is closed: whoever holds
// them open to keep others out holds his own, and one who asks at once, as Prometheus does, is heard.
type clients struct {
	most int

	mu    sync.Mutex
	open  map[net.Conn]client
	count uint64
}

type client struct {
	number uint64 // in the order in which they came
	asks   int    // requests that are being answered
}

type connKey struct{}

// serve has a server count its connections.
func (c *clients) serve(s *http.Server) {
	handler := s.Handler
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, conn)
	}
	s.ConnState = c.changed
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _ := r.Context().Value(connKey{}).(net.Conn)
		c.asking(conn, 1)
		defer c.asking(conn, -1)
		handler.ServeHTTP(w, r)
	})
}

func (c *clients) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if c.open == nil {
			c.open = map[net.Conn]client{}
		}
		c.count++
		c.open[conn] = client{number: c.count}
		if len(c.open) > c.most {
			c.drop()
		}
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
	}
}

func (c *clients) asking(conn net.Conn, more int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if is, open := c.open[conn]; open {
		is.asks += more
		c.open[conn] = is
	}
}

// drop closes one. The newest is never being answered yet, so there is always one.
func (c *clients) drop() {
	var oldest net.Conn
	for conn, is := range c.open {
		if is.asks == 0 && (oldest == nil || is.number < c.open[oldest].number) {
			oldest = conn
		}
	}
	delete(c.open, oldest)
	_ = oldest.Close()
}
