// Package httpserver serves metrics and the status page over HTTP, for reading only.
package httpserver

import (
	"context"
	"errors"
	stdlog "log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/rootsocket"
	"github.com/gpuledger/gpuledger/internal/metrics"
	"github.com/gpuledger/gpuledger/internal/page"
)

// Server is the manager that serves metrics and the status page, for reading only.
type Server struct {
	Address func() string // as configured: HOST:PORT, unix:/path, or "" for none
	Metrics func() metrics.Snapshot
	Page    func() page.Data
	Log     *logrus.Logger

	mu      sync.Mutex
	address string // as configured, of the running server
	running *http.Server
	at      net.Listener // its
}

func (s *Server) Name() string { return "listener" }

// Ensure listens at the configured address, and only there.
func (s *Server) Ensure(context.Context) error {
	want := s.Address()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.address == want && (want == "" || rootsocket.Reachable(s.at)) {
		return nil
	}
	s.stop()
	if want == "" {
		return nil
	}
	l, err := listenOn(want)
	if err != nil {
		return err
	}
	s.address, s.running, s.at = want, newServer(s.handler(want), s.Log), l
	go s.serve(s.running, l)
	s.logAddress(l.Addr())
	return nil
}

// serve serves until the server is closed. If it ends by itself, the next Ensure listens again.
func (s *Server) serve(server *http.Server, l net.Listener) {
	err := server.Serve(l)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == server && !errors.Is(err, http.ErrServerClosed) {
		s.Log.WithError(err).Warn("the listener has ended")
		s.address, s.running, s.at = "", nil, nil
	}
}

func (s *Server) logAddress(at net.Addr) {
	log := s.Log.WithField("address", at.String())
	if tcp, isTCP := at.(*net.TCPAddr); isTCP && !tcp.IP.IsLoopback() {
		log.Warn("serving metrics and the status page to every program that can reach this node")
		return
	}
	log.Info("serving metrics and the status page")
}

// Stop closes the listener and every connection.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
}

func (s *Server) stop() {
	if s.running != nil {
		_ = s.running.Close()
	}
	s.address, s.running, s.at = "", nil, nil
}

// How many connections may be open at once, how many scrapes are answered at once, and how many
// pages are made at once.
const (
	maxConnections = 64
	maxScrapes     = 4
	maxPages       = 4
)

func newServer(h http.Handler, log *logrus.Logger) *http.Server {
	s := &http.Server{Handler: h, ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: debugLog(log)}
	(&connections{max: maxConnections}).limit(s)
	return s
}

// handler answers GET and HEAD of two paths.
func (s *Server) handler(address string) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.Collector{Snapshot: s.Metrics}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorLog: s.Log,
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes,
		// compression takes as long as the rest, and most clients are on this node
		DisableCompression: true}))
	mux.Handle("/{$}", s.servePage(make(chan struct{}, maxPages)))
	return checkRequest(address, mux)
}

// servePage answers with the status page. As many are made at once as the channel has room for. To
// make one takes milliseconds, so a client waits for that. Clients that are slow to read delay no
// others.
func (s *Server) servePage(made chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case made <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		text, err := func() ([]byte, error) {
			defer func() { <-made }()
			return page.Render(s.Page())
		}()
		if err != nil {
			s.Log.Error(err)
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		page.Headers(w.Header())
		_, _ = w.Write(text)
	}
}

// checkRequest lets requests through that only read, and that name this node. A web page elsewhere
// can have its own name resolve to this address (DNS rebinding). Its scripts could then read the
// answers as if they came from their own server.
func checkRequest(address string, next http.Handler) http.Handler {
	isUnix := strings.HasPrefix(address, "unix:")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "cannot do that: gpuledgerd is only read here", http.StatusMethodNotAllowed)
		case !isUnix && !isOwnName(r.Host, address):
			http.Error(w,
				"cannot answer for a name that is not this node's; use its address, or the name in "+
					"daemon.listen", http.StatusMisdirectedRequest)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isOwnName reports whether a Host header names this node: by an address, which rebinding cannot
// use, or by its own name.
func isOwnName(host, address string) bool {
	name := withoutPort(host)
	if name == "" || name == "localhost" || name == withoutPort(address) {
		return true
	}
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return true
	}
	own, err := os.Hostname()
	return err == nil && strings.EqualFold(name, own)
}

func withoutPort(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// debugLog is where the server's messages about its clients go: to the debug level.
func debugLog(log *logrus.Logger) *stdlog.Logger {
	return stdlog.New(debugWriter{log}, "listener: ", 0)
}

type debugWriter struct{ log *logrus.Logger }

func (w debugWriter) Write(line []byte) (int, error) {
	w.log.Debug(strings.TrimSpace(string(line)))
	return len(line), nil
}
