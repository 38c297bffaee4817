package userserver

import (
	stdlog "log"
	"net"
	"os/user"
	"strconv"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/rootsocket"
)

// How many connections there may be at once: of one user, of all uids that /etc/passwd does not
// have together (a user has thousands of subordinate ones), and in all.
const (
	maxOfUser      = 24
	maxOfStrangers = 48
	maxConnections = 512
)

// strangers is where connections of uids without a name are counted.
const strangers = 1<<32 - 1

// bounded is a listener that closes what is too many of one user, and says of the rest who it is.
type bounded struct {
	net.Listener
	mu   sync.Mutex
	open map[uint32]int // by uid
	all  int
}

// counted is a connection of a user.
type counted struct {
	net.Conn
	uid    uint32
	closed sync.Once
	done   func()
}

func (c *counted) Close() error {
	c.closed.Do(c.done)
	return c.Conn.Close()
}

func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := rootsocket.PeerUID(conn)
		if err == nil {
			if done, room := b.enter(uid); room {
				return &counted{Conn: conn, uid: uid, done: done}, nil
			}
		}
		_ = conn.Close()
	}
}

// enter counts a connection, where there is room for one more.
func (b *bounded) enter(uid uint32) (done func(), room bool) {
	key, most := uid, maxOfUser
	if _, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err != nil {
		key, most = strangers, maxOfStrangers
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[key] >= most || b.all >= maxConnections {
		return nil, false
	}
	b.open[key]++
	b.all++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.all--
		if b.open[key]--; b.open[key] == 0 {
			delete(b.open, key)
		}
	}, true
}

// quietLog is where the HTTP server's messages about its clients go: to the debug level.
func quietLog(log *logrus.Logger) *stdlog.Logger { return stdlog.New(debugWriter{log}, "users: ", 0) }

type debugWriter struct{ log *logrus.Logger }

func (w debugWriter) Write(line []byte) (int, error) {
	w.log.Debug(strings.TrimSpace(string(line)))
	return len(line), nil
}
