package userserver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/users"
)

// newServer is a server on a node with a GPU of 8 GiB, on which ada and bert may have all of it.
func newServer(t *testing.T) *Server {
	t.Helper()
	s, adas, berts := idleNode(t, grant.UserNodesMode)
	n := s.Node()
	for _, id := range []grant.ID{adas, berts} {
		_, err := grants.Release(n, id, true)
		daemontest.Must(t, err)
	}
	boot, err := n.Host.BootID()
	daemontest.Must(t, err)
	n.Policy.Inventory.Source = "test"
	n.Policy.Quotas = []grant.Quota{{User: "60001"}, {User: "60002"}}
	s.inventory(t, boot)
	s.Ledger, s.Nodes = grants.Read, func(context.Context) error { return nil }
	return s
}

// inventory is of a boot.
func (s *Server) inventory(t *testing.T, boot string) {
	t.Helper()
	daemontest.Must(t, gpu.Write(gpu.Path(s.Node().Policy.StateDir), grant.Inventory{BootID: boot,
		Source: "test",
		GPUs:   []grant.GPU{{UUID: daemontest.GPU, Memory: 8 * grant.GiB, Health: grant.Healthy}}}))
}

// answer is what a user is answered.
func (s *Server) answer(ctx context.Context, user uint32, method, path string, body any) string {
	text, _ := json.Marshal(body)
	r := httptest.NewRequest(method, path, strings.NewReader(string(text)))
	w := httptest.NewRecorder()
	s.newServer(false).Handler.ServeHTTP(w, r.WithContext(context.WithValue(ctx, peerKey{}, peer{uid: user})))
	return w.Body.String()
}

// asksFor asks for a grant of 1 GiB.
func (s *Server) asksFor(ctx context.Context, user uint32, secret string) string {
	return s.answer(ctx, user, "POST", users.GrantPath, users.GrantRequest{Secret: strings.Repeat(secret, 16),
		Terms: users.Terms{Memory: grant.GiB, GPUs: 1, Mode: grant.Limit, Owner: grant.Bearer}})
}

// granted are the grants of a user.
func (s *Server) granted(t *testing.T, user uint32) (ids []grant.ID) {
	t.Helper()
	o, err := grants.Read(s.Node())
	daemontest.Must(t, err)
	for _, g := range o.Grants {
		if g.User == user {
			ids = append(ids, g.ID)
		}
	}
	return ids
}

// TestUnknownGroupsAreSaid: a user whose groups cannot be read reads that, and gets nothing.
func TestUnknownGroupsAreSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock stands still while a program runs
		daemontest.BrokenDirectory(t)
		s := newServer(t)
		s.Node().Policy.Quotas = []grant.Quota{{User: "of-a-directory"}, {User: "60001"}}
		const why = "cannot be read: `getent passwd`: exit status 1; try again"
		if got := s.answer(t.Context(), ada, "GET", users.ViewPath, nil); !strings.Contains(got, why) {
			t.Errorf("what ada sees is %s", got)
		}
		got := s.asksFor(t.Context(), ada, "ab")
		if !strings.Contains(got, "cannot grant: the users of this node "+why) || len(s.granted(t, ada)) > 0 {
			t.Errorf("ada is answered %s", got)
		}
	})
}

// onSocket serves ada on a real socket. over gets a value for each request that has been served.
func (s *Server) onSocket(t *testing.T) (socket string, over chan struct{}) {
	t.Helper()
	server := s.newServer(false)
	server.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, peerKey{}, peer{uid: ada})
	}
	server.ReadTimeout = time.Minute // a busy machine is slow
	handler := server.Handler
	over = make(chan struct{}, 1)
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r)
		over <- struct{}{}
	})
	socket = daemontest.ShortDir(t) + "/s"
	listener, err := net.Listen("unix", socket)
	daemontest.Must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }()
	return socket, over
}

// TestClientThatIsGoneHasNoPlace, whatever it says about the length of its request. What is longer
// or shorter than that is no request.
func TestClientThatIsGoneHasNoPlace(t *testing.T) {
	for name, c := range map[string]struct {
		after  string // after the request, within its length
		longer int    // how much its length is above what is sent
		reads  string
	}{
		"a request":            {reads: `{"place":1,"of":1}`},
		"more than a request":  {after: "{}", reads: "cannot understand"},
		"less than its length": {longer: 1, reads: "cannot understand"},
	} {
		s := newServer(t)
		s.full(t)
		socket, over := s.onSocket(t)
		client, err := net.Dial("unix", socket)
		daemontest.Must(t, err, client.SetDeadline(time.Now().Add(time.Minute)))
		body := waitingRequest(time.Hour) + c.after
		_, err = fmt.Fprintf(client, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s",
			users.GrantPath, len(body)+c.longer, body)
		if c.longer > 0 {
			_ = client.(*net.UnixConn).CloseWrite()
		}
		answer := bufio.NewReader(client)
		for line := ""; err == nil && !strings.Contains(line, c.reads); {
			line, err = answer.ReadString('\n')
		}
		if err != nil {
			t.Errorf("%s: the client does not read %q: %v", name, c.reads, err)
		}
		_ = client.Close()
		select {
		case <-over:
		case <-time.After(time.Minute):
			t.Errorf("%s: it is still served", name)
		}
	}
}
