package daemon

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

// listener is the manager of the listener: metrics and the status page, for reading only.
type HTTPManager struct {
	*statusView
	log *logrus.Logger

	mu      sync.Mutex
	address string // as configured, of the server that runs
	server  *http.Server
	at      net.Listener // its
}

func (s *HTTPManager) Name() string { return "listener" }

// Ensure listens where the configuration says, and only there.
func (s *HTTPManager) Ensure(context.Context) error {
	want := s.node().Policy.Daemon.Listen
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
	s.address, s.server, s.at = want, newServer(s.handler(want), s.log), l
	go s.serve(s.server, l)
	s.logAddress(l.Addr())
	return nil
}

// run serves until the server is stopped. Where it ends by itself the next Ensure listens again.
func (s *HTTPManager) serve(server *http.Server, l net.Listener) {
	err := server.Serve(l)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == server && !errors.Is(err, http.ErrServerClosed) {
		s.log.WithError(err).Warn("the listener has ended")
		s.address, s.server, s.at = "", nil, nil
	}
}

func (s *HTTPManager) logAddress(at net.Addr) {
	log := s.log.WithField("address", at.String())
	if tcp, isTCP := at.(*net.TCPAddr); isTCP && !tcp.IP.IsLoopback() {
		log.Warn("serving metrics and the status page to whoever reaches this node")
		return
	}
	log.Info("serving metrics and the status page")
}

// Stop closes the listener and every connection.
func (s *HTTPManager) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
}

func (s *HTTPManager) stop() {
	if s.server != nil {
		_ = s.server.Close()
	}
	s.address, s.server, s.at = "", nil, nil
}

// What one client may take: connections that are open at once, and scrapes that are answered at once.
const (
	maxConnections = 64
	maxScrapes     = 4
)

func newServer(h http.Handler, log *logrus.Logger) *http.Server {
	s := &http.Server{Handler: h, ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: debugLog(log)}
	(&connections{max: maxConnections}).limit(s)
	return s
}

// handler answers GET and HEAD of two paths.
func (s *HTTPManager) handler(address string) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.Collector{Snapshot: s.metricsSnapshot}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorLog: s.log, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes,
		DisableCompression: true})) // to compress it takes as long as to make it, and most who ask are on this node
	mux.HandleFunc("/{$}", s.page)
	return checkRequest(address, mux)
}

// page is the status page.
func (s *HTTPManager) page(w http.ResponseWriter, _ *http.Request) {
	text, err := page.Render(s.pageContent())
	if err != nil {
		s.log.Error(err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	page.Headers(w.Header())
	_, _ = w.Write(text)
}

// guarded lets through what only reads, and what was asked of this node by a name that is its own: a web page elsewhere can
// have its own name lead to this address (DNS rebinding), and would then read the answers as if they were its own.
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
			http.Error(w, "cannot answer for a name that is not this node's; use its address, or the name in daemon.listen", http.StatusMisdirectedRequest)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isOurs reports whether a Host header names this node: by an address, which no rebinding can use, or by its own name.
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

// quiet has the server's complaints about its clients where debugging shows them.
func debugLog(log *logrus.Logger) *stdlog.Logger {
	return stdlog.New(debugWriter{log}, "listener: ", 0)
}

type debugWriter struct{ log *logrus.Logger }

func (w debugWriter) Write(line []byte) (int, error) {
	w.log.Debug(strings.TrimSpace(string(line)))
	return len(line), nil
}
