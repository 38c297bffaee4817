package userserver

import (
	"io"
	stdlog "log"
	"net"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/rootsocket"
	"github.com/gpuledger/gpuledger/internal/users"
)

// pool is where a connection is counted: that of a user with a name, which is the uid, or one that
// several users share.
type pool uint64

// How many connections there may be at once: of one user; of all uids without a name together,
// since a user has thousands of subordinate ones; of all users of whom a directory service has not
// answered yet; and in all.
const (
	maxOfUser       = 24
	maxOfStrangers  = 48
	maxOfUnresolved = 16
	maxConnections  = 512
)

const (
	unnamed    pool = 1<<32 + iota
	unresolved      // a directory service has not answered yet whether they have a name
)

func (p pool) most() int {
	switch p {
	case unnamed:
		return maxOfStrangers
	case unresolved:
		return maxOfUnresolved
	}
	return maxOfUser
}

// bounded is a listener that closes the connections of a user who has too many. It returns the
// others with the uid of their user.
type bounded struct {
	net.Listener
	mu   sync.Mutex
	open map[pool]int
	all  int
}

// counted is a connection of a user.
type counted struct {
	net.Conn
	uid      uint32
	of       *bounded
	resolved sync.Once
	tooMany  bool
	// under of.mu
	in     pool
	closed bool
}

func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if uid, err := rootsocket.PeerUID(conn); err == nil {
			if c := b.enter(conn, uid); c != nil {
				return c, nil
			}
		}
		_ = conn.Close()
	}
}

// enter counts a connection; nil: there is no room for one more. It does not wait for a directory
// service: no other client could connect meanwhile.
func (b *bounded) enter(conn net.Conn, uid uint32) *counted {
	if b.isFull() {
		return nil
	}
	c := &counted{Conn: conn, uid: uid, of: b, in: unnamed}
	switch named, sure := users.IsNamedHere(uid); {
	case named:
		c.in = pool(uid)
	case !sure:
		c.in = unresolved
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all >= maxConnections || b.open[c.in] >= c.in.most() {
		return nil
	}
	b.all++
	b.open[c.in]++
	return c
}

// isFull saves a flood the look into the files of /etc.
func (b *bounded) isFull() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all >= maxConnections
}

// Read asks a directory service first, in the connection's own goroutine, whether the user has a
// name. If the user has too many connections, this one has ended: the HTTP server would answer any
// other error.
func (c *counted) Read(p []byte) (int, error) {
	c.resolved.Do(c.resolve)
	if c.tooMany {
		return 0, io.EOF
	}
	return c.Conn.Read(p)
}

func (c *counted) resolve() {
	if c.in != unresolved { // nothing else changes it
		return
	}
	to := unnamed
	switch named, err := users.IsNamed(c.uid); {
	case named:
		to = pool(c.uid)
	case err != nil:
		return // it stays unresolved
	}
	b := c.of
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case c.closed:
	case b.open[to] >= to.most():
		c.tooMany = true
	default:
		b.leave(c.in)
		c.in = to
		b.open[to]++
	}
}

func (c *counted) Close() error {
	c.of.mu.Lock()
	if !c.closed {
		c.closed = true
		c.of.all--
		c.of.leave(c.in)
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (b *bounded) leave(p pool) {
	if b.open[p]--; b.open[p] == 0 {
		delete(b.open, p)
	}
}

// quietLog is where the HTTP server's messages about its clients go: to the debug level.
func quietLog(log *logrus.Logger) *stdlog.Logger { return stdlog.New(debugWriter{log}, "users: ", 0) }

type debugWriter struct{ log *logrus.Logger }

func (w debugWriter) Write(line []byte) (int, error) {
	w.log.Debug(strings.TrimSpace(string(line)))
	return len(line), nil
}
