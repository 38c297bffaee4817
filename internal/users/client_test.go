package users

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// fakeDaemon hangs up on the first request, as if it had been killed, and answers later ones.
type fakeDaemon struct {
	socket  string
	server  http.Server
	secrets []string // of the requests, in their order
	ends    bool     // with its first request
}

// starts serves on a socket, whose name has at most 107 bytes (unix(7)).
func (f *fakeDaemon) starts(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "s-")
	if err != nil {
		t.Fatal(err)
	}
	f.socket = dir + "/socket"
	l, err := net.Listen("unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	f.server = http.Server{Handler: f, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = f.server.Serve(l) }()
	t.Cleanup(func() { _ = f.server.Close(); _ = os.RemoveAll(dir) })
}

func (f *fakeDaemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var request GrantRequest
	_ = json.NewDecoder(r.Body).Decode(&request)
	f.secrets = append(f.secrets, request.Secret)
	switch {
	case f.ends:
		_ = f.server.Close()
	case len(f.secrets) == 1:
		panic(http.ErrAbortHandler)
	}
	_ = json.NewEncoder(w).Encode(Event{Grant: &Listed{ID: "g-aaaaaaaaaaaa"}})
}

// TestARequestWithoutAnswerIsSentAgain also if it does not wait: gpuledgerd may have entered a
// grant before it was killed, and finds it by the request's secret. If gpuledgerd stays away, the
// user reads that there may be a grant.
func TestARequestWithoutAnswerIsSentAgain(t *testing.T) {
	for name, wait := range map[string]time.Duration{"does not wait": 0, "waits": time.Second} {
		for _, ends := range []bool{false, true} {
			f := &fakeDaemon{ends: ends}
			f.starts(t)
			synctest.Test(t, func(t *testing.T) {
				began, gone := time.Now(), 0
				g, _, err := Client{f.socket}.Grant(t.Context(), GrantRequest{Secret: "secret", Wait: wait,
					Since: began, Terms: Terms{Mode: grant.Limit, Owner: grant.Bearer}},
					func(place, of int) { gone++ })
				took := time.Since(began)
				switch {
				case gone != 1:
					t.Errorf("%s: it reads %d times that gpuledgerd is gone", name, gone)
				case ends && (err == nil || !strings.Contains(err.Error(), "`gpuledger grants`") ||
					took < returnTime || took > returnTime+2*time.Second):
					t.Errorf("%s: after %s it has %v", name, took, err)
				case !ends && (err != nil || g.ID != grant.ID("g-aaaaaaaaaaaa") ||
					strings.Join(f.secrets, " ") != "secret secret"):
					t.Errorf("%s: after %s it has %q, %v; sent were %v", name, took, g.ID, err, f.secrets)
				}
			})
		}
	}
}

// TestAnAnswerThatHasComeCounts: a grant that gpuledgerd sends before it notices an interruption is
// told to the caller, who can release it then. Without one, the request is over.
func TestAnAnswerThatHasComeCounts(t *testing.T) {
	const id grant.ID = "g-aaaaaaaaaaaa"
	for _, c := range []struct {
		waits bool
		want  grant.ID
	}{{true, id}, {true, ""}, {false, id}, {false, ""}} {
		asked := make(chan bool, 1)
		f := &fakeDaemon{}
		f.starts(t)
		f.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			e := json.NewEncoder(w)
			_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice the end
			if c.waits {
				_ = errors.Join(e.Encode(Event{Place: 1, Of: 1}), http.NewResponseController(w).Flush())
			} else {
				asked <- true
			}
			<-r.Context().Done()
			if c.want != "" {
				_ = e.Encode(Event{Grant: &Listed{ID: c.want}})
			}
		})
		late := time.AfterFunc(time.Minute, func() { _ = f.server.Close() })
		synctest.Test(t, func(t *testing.T) { // its clock stands still while the daemon answers
			ctx, interrupt := context.WithCancel(t.Context())
			if !c.waits {
				go func() { <-asked; interrupt() }()
			}
			g, _, err := Client{f.socket}.Grant(ctx, GrantRequest{Secret: "secret", Wait: time.Minute,
				Since: time.Now(), Terms: Terms{Mode: grant.Limit, Owner: grant.Bearer}},
				func(int, int) { interrupt() })
			if g.ID != c.want || (c.want == "") != errors.Is(err, context.Canceled) {
				t.Errorf("waits: %t: it has %q, %v; want %q", c.waits, g.ID, err, c.want)
			}
		})
		late.Stop()
	}
}

// TestWithoutADaemon: root needs the daemon alone, and other users also that it serves them.
func TestWithoutADaemon(t *testing.T) {
	socket := t.TempDir() + "/socket"
	_, err := Client{Socket: socket}.Look(t.Context())
	if want := "cannot ask gpuledgerd on " + socket + ": connect: no such file or directory; does " +
		"gpuledgerd run? For users other than root its configuration also needs [users] or " +
		"[[quota]]"; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
