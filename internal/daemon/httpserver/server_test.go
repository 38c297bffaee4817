package httpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logs "github.com/sirupsen/logrus/hooks/test"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/page"
)

func TestOnlyReadersThatNameThisNodeAreAnswered(t *testing.T) {
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	const tcp, named, path = "127.0.0.1:9836", "gpu7.example:9836", "unix:/run/gpuledger/status.sock"
	for _, c := range []struct {
		listen, method, host string
		want                 int
	}{
		{tcp, "GET", "127.0.0.1:9836", 200}, {tcp, "HEAD", "127.0.0.1:9836", 200},
		{tcp, "GET", "localhost:9836", 200}, {tcp, "GET", "localhost", 200},
		{tcp, "GET", "[::1]:9836", 200}, {tcp, "GET", "10.0.0.7", 200},
		{tcp, "GET", strings.ToUpper(own) + ":9836", 200},
		{tcp, "GET", "evil.example:9836", 421}, {tcp, "GET", "127.0.0.1.evil.example", 421},
		{tcp, "GET", "localhost.evil.example:9836", 421}, {tcp, "GET", "gpu7.example:9836", 421},
		{named, "GET", "gpu7.example:9836", 200}, {named, "GET", "gpu8.example", 421},
		{path, "GET", "whatever", 200}, {path, "GET", "localhost", 200},
		{tcp, "POST", "127.0.0.1", 405}, {tcp, "PUT", "127.0.0.1", 405}, {tcp, "DELETE", "127.0.0.1", 405},
		{tcp, "OPTIONS", "127.0.0.1", 405}, {path, "POST", "localhost", 405},
	} {
		r := httptest.NewRequest(c.method, "/", nil)
		r.Host = c.host
		w := httptest.NewRecorder()
		checkRequest(c.listen, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(200)
		})).ServeHTTP(w, r)
		if w.Code != c.want || w.Header().Get("X-Content-Type-Options") != "nosniff" ||
			w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s for host %q at %s: %d %v, want %d", c.method, c.host, c.listen, w.Code,
				w.Header(), c.want)
		}
	}
}

func TestASocketForRootAlone(t *testing.T) {
	path := filepath.Join(daemontest.ShortDir(t), "status.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close() // as a killed daemon leaves it
	l, err := listenOn("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		t.Errorf("the socket is %v (%v)", info, err)
	}
	if _, err := listenOn("unix:" + path); err == nil ||
		err.Error() != "cannot serve metrics and the status page on unix:"+path+": address already in use" {
		t.Errorf("a second server gets %v", err)
	}
	if again, err := os.Stat(path); err != nil || !os.SameFile(info, again) {
		t.Error("the second one has taken the first one's socket away")
	}
	accepted := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_ = conn.Close()
		}
		accepted <- err
	}()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := <-accepted; err != nil {
		t.Errorf("the daemon's own user is not let in: %v", err)
	}
	_ = l.Close()
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("%v is left behind", left)
	}
}

func TestErrorsOfListening(t *testing.T) {
	dir := daemontest.ShortDir(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for address, why := range map[string]string{
		"unix:" + file: "there is a file that is no socket", "unix:" + dir +
			"/no/such": "no such file or directory", "unix:relative": "want unix: and an absolute path",
		"unix:@abstract": "want unix: and an absolute path", taken.Addr().String(): "address already in use",
		"9836": `want HOST:PORT, unix:/path or "": missing port in address`,
	} {
		if l, err := listenOn(address); err == nil ||
			err.Error() != "cannot serve metrics and the status page on "+address+": "+why {
			t.Errorf("listen(%q): %v, %v; want %q", address, l, err, why)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "precious" {
		t.Errorf("the file has %q (%v)", text, err)
	}
}

// TestEachClientIsAnswered: a client that opens more connections than allowed keeps no other out,
// and an answer in progress is finished.
func TestEachClientIsAnswered(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	began, finish := make(chan struct{}), make(chan struct{})
	server := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(began)
			<-finish
		}
		_, _ = w.Write([]byte("read"))
	}), logrus.New())
	server.ReadTimeout, server.WriteTimeout = time.Minute, 2*time.Minute // a busy machine is slow
	defer server.Close()
	go server.Serve(l)
	ask := func(path string) error {
		conn := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := conn.Get("http://" + l.Addr().String() + path)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err == nil && string(text) != "read" {
			err = errors.New("it receives " + string(text))
		}
		return err
	}
	slow := make(chan error, 1)
	go func() { slow <- ask("/slow") }()
	<-began
	for range 2 * maxConnections {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	for range 5 {
		if err := ask("/"); err != nil {
			t.Errorf("a request while other clients hold their connections: %v", err)
		}
	}
	close(finish)
	if err := <-slow; err != nil {
		t.Errorf("a request that was being answered: %v", err)
	}
}

// TestAFloodOfPages: few are made at once, and each client gets one.
func TestAFloodOfPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		making, finish, answers := make(chan bool, 100), make(chan bool), make(chan int, 100)
		s := &Server{Log: logrus.New(), Page: func() page.Data {
			making <- true
			<-finish
			return page.Data{}
		}}
		handler := s.handler("unix:status.sock")
		ask := func(ctx context.Context) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil).WithContext(ctx))
			return w
		}
		for range 2 * maxPages {
			go func() { answers <- ask(t.Context()).Code }()
		}
		synctest.Wait()
		if len(making) != maxPages {
			t.Errorf("%d pages are made at once, want %d", len(making), maxPages)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		go func() { ask(gone); answers <- http.StatusOK }()
		close(finish)
		for range 2*maxPages + 1 {
			if got := <-answers; got != http.StatusOK {
				t.Errorf("a client is answered %d", got)
			}
		}
	})
}

// TestTheListenersSocketIsMadeAgain: the log names it as configured.
func TestTheListenersSocketIsMadeAgain(t *testing.T) {
	path := filepath.Join(daemontest.ShortDir(t), "status.sock")
	log, logged := logs.NewNullLogger()
	s := &Server{Address: func() string { return "unix:" + path }, Log: log}
	defer s.Stop()
	for times := 1; times <= 2; times++ {
		for range 2 { // the second time it is there
			daemontest.Must(t, s.Ensure(context.Background()))
		}
		conn, err := net.Dial("unix", path)
		daemontest.Must(t, err)
		_ = conn.Close()
		if got := logged.AllEntries(); len(got) != times || got[0].Level != logrus.InfoLevel ||
			fmt.Sprint(got[0].Data["address"]) != path {
			t.Errorf("logged %d times: %+v", times, got)
		}
		daemontest.Must(t, os.Remove(path))
	}
}
