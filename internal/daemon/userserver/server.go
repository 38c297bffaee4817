// Package userserver serves the users of the node: what they may see, grants within their quotas,
// and places in the queue (docs/users.md). The kernel says who asks; nothing that a client
// says about itself counts.
package userserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/rootsocket"
	"github.com/gpuledger/gpuledger/internal/daemon/userqueue"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

// Server is the manager that listens for users and for root, serves the queue, and releases idle
// grants.
type Server struct {
	Node   func() *node.Node
	Ledger func(*node.Node) (grants.Overview, error)
	// Nodes gives users access to the device nodes of their grants, and takes it back.
	Nodes func(context.Context) error
	Log   *logrus.Logger

	queue          userqueue.Queue
	opened         openNodes
	programCgroups programCgroups
	turns          turns
	reads          reads
	attempts       attempts
	refusals       refusals

	mu     sync.Mutex
	open   [2]listener // for users, for root
	ending bool
}

// listener is a socket on which the server listens.
type listener struct {
	address string
	at      net.Listener
	server  *http.Server
}

func (s *Server) Name() string { return "users" }

// Ensure listens where the configuration says, grants what those who wait can have by now, releases
// what is idle, and removes the cgroups of programs that have ended.
func (s *Server) Ensure(context.Context) error {
	n, now := s.Node(), time.Now()
	s.turns.forget(now)
	s.recordMore(n, now)
	return errors.Join(s.listen(0, n.Policy.UsersSocket()), s.listen(1, n.Policy.RootsSocket()),
		s.queue.Pass(n, s.Ledger), s.releaseIdle(n, time.Now), s.removeProgramCgroups(n))
}

// Stop closes the sockets and every connection. Clients that wait send their requests again.
func (s *Server) Stop() {
	s.mu.Lock()
	s.ending = true
	for i := range s.open {
		s.open[i].close()
	}
	s.mu.Unlock()
	s.recordMore(s.Node(), time.Now().Add(recordTime))
}

func (l *listener) close() {
	if l.server != nil {
		_ = l.at.Close() // it removes its name
		_ = l.server.Close()
	}
	*l = listener{}
}

// listen has the users' socket (0) or root's (1) at an address; "" for none.
func (s *Server) listen(which int, address string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.open[which]
	if l.address == address && (address == "" || rootsocket.Reachable(l.at)) {
		return nil
	}
	l.close()
	if address == "" {
		return nil
	}
	make := rootsocket.ListenToAll
	if which == 1 {
		make = rootsocket.Listen
	}
	at, err := make(address)
	if err != nil {
		return fmt.Errorf("cannot serve users on %s: %w", address, err)
	}
	*l = listener{address: address, at: at, server: s.newServer(which == 1)}
	go func(server *http.Server) {
		_ = server.Serve(&bounded{Listener: at, open: map[pool]int{}})
	}(l.server)
	if which == 0 {
		s.Log.WithField("socket", address).Info("serving the users of the node")
	}
	return nil
}

// peer is who has connected.
type peer struct {
	uid  uint32
	root bool // on root's socket: it has no quota, and is not bound by one
	conn net.Conn
	// counted is the same connection; nil: it is not counted
	counted *counted
}

// pool is that in which the connections of the user are counted.
func (p peer) pool() pool {
	if p.counted == nil {
		return pool(p.uid)
	}
	b := p.counted.of
	b.mu.Lock()
	defer b.mu.Unlock()
	return p.counted.in
}

type peerKey struct{}

func (s *Server) newServer(root bool) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+users.ViewPath, s.view)
	mux.HandleFunc("POST "+users.GrantPath, s.grant)
	mux.HandleFunc("POST "+users.RunPath, s.run)
	mux.HandleFunc("POST "+users.ReleasePath, s.release)
	mux.HandleFunc("POST "+users.UpdatePath, s.update)
	mux.HandleFunc("POST "+users.ExplainPath, s.explain)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, known := r.Context().Value(peerKey{}).(peer); !known {
				http.Error(w, "the kernel does not say who asks", http.StatusForbidden)
				return
			}
			r.Body = http.MaxBytesReader(w, r.Body, users.MaxBody)
			w.Header().Set("Content-Type", "application/json")
			mux.ServeHTTP(w, r)
		}),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			if c, is := conn.(*counted); is {
				return context.WithValue(ctx, peerKey{}, peer{uid: c.uid, root: root, conn: c.Conn,
					counted: c})
			}
			return ctx
		},
		ReadTimeout: ioTime, MaxHeaderBytes: users.MaxBody, ErrorLog: quietLog(s.Log),
	}
	server.SetKeepAlivesEnabled(false)
	return server
}

// ioTime bounds how long a client takes to send a request, or to take a part of the answer.
const ioTime = 5 * time.Second

func peerOf(r *http.Request) peer {
	p, _ := r.Context().Value(peerKey{}).(peer)
	return p
}

// read reads a request. It answers itself where that cannot be understood. The body is read to its
// end: net/http notices that a client is gone only after that.
func read(w http.ResponseWriter, r *http.Request, into any) bool {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	// from here on only the client's going away is read, which may be long after
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if err != nil {
		fail(w, http.StatusBadRequest, errors.New("gpuledgerd cannot understand the request"))
	}
	return err == nil
}

func fail(w http.ResponseWriter, status int, err error) {
	w.WriteHeader(status)
	_ = send(w, users.Event{Error: users.ErrorOf(err)})
}

// send writes a line, which the client has to take soon.
func send(w http.ResponseWriter, e any) error {
	c := http.NewResponseController(w)
	_ = c.SetWriteDeadline(time.Now().Add(ioTime))
	if err := json.NewEncoder(w).Encode(e); err != nil {
		return err
	}
	return c.Flush()
}
