package userserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/users"
)

// client is the connection of a client that reads lines.
type client struct {
	lines  chan string
	gone   bool   // nothing can be sent to it
	before func() // if it is there, it is called before each line
}

func (c *client) Header() http.Header { return http.Header{} }
func (c *client) WriteHeader(int)     {}
func (c *client) Flush()              {}
func (c *client) Write(line []byte) (int, error) {
	if c.gone {
		return 0, errors.New("broken pipe")
	}
	if c.before != nil {
		c.before()
	}
	c.lines <- string(line)
	return len(line), nil
}

// sends sends a request of ada's for 1 GiB that waits. The channel is closed when it is over.
func (s *Server) sends(ctx context.Context, c *client) (over chan struct{}) {
	return s.sendsToWait(ctx, c, time.Hour)
}

func (s *Server) sendsToWait(ctx context.Context, c *client, long time.Duration) (over chan struct{}) {
	r := httptest.NewRequest("POST", users.GrantPath, strings.NewReader(waitingRequest(long)))
	r = r.WithContext(context.WithValue(ctx, peerKey{}, peer{uid: ada}))
	over = make(chan struct{})
	go func() {
		s.newServer(false).Handler.ServeHTTP(c, r)
		close(over)
	}()
	return over
}

// waitingRequest asks for 1 GiB, and waits for it.
func waitingRequest(long time.Duration) string {
	text, _ := json.Marshal(users.GrantRequest{Secret: strings.Repeat("ab", 16), Wait: long,
		Terms: users.Terms{Memory: grant.GiB, GPUs: 1, Mode: grant.Limit, Owner: grant.Bearer}})
	return string(text)
}

// full has bert's grant take all of the GPU.
func (s *Server) full(t *testing.T) {
	t.Helper()
	all := users.Terms{Memory: 8 * grant.GiB, GPUs: 1, Mode: grant.Limit, Owner: grant.Bearer}
	full := s.answer(t.Context(), bert, "POST", users.GrantPath,
		users.GrantRequest{Secret: strings.Repeat("cd", 16), Terms: all})
	if !strings.Contains(full, "granted g-") {
		t.Fatal(full)
	}
}

func newClient() *client { return &client{lines: make(chan string, 64)} }

// waits reads until a client is told its place.
func (c *client) waits(t *testing.T, place string) {
	t.Helper()
	if line := <-c.lines; strings.TrimSpace(line) != place {
		t.Fatalf("the client reads %swant %s", line, place)
	}
}

// TestARequestThatWaitsIsSentAgain: the connection of the first is broken, which is not noticed. It
// has one place in the queue and one grant.
func TestARequestThatWaitsIsSentAgain(t *testing.T) {
	s := newServer(t)
	s.full(t)
	first, second := newClient(), newClient()
	firstOver := s.sends(t.Context(), first)
	first.waits(t, `{"place":1,"of":1}`)
	secondOver := s.sends(t.Context(), second)
	second.waits(t, `{"place":1,"of":1}`)
	<-firstOver
	_, err := grants.Release(s.Node(), s.granted(t, bert)[0], true)
	daemontest.Must(t, err, s.queue.Pass(s.Node(), s.Ledger))
	<-secondOver
	line := <-second.lines
	if ids := s.granted(t, ada); len(ids) != 1 || !strings.Contains(line, string(ids[0])) {
		t.Errorf("the client reads %sand has the grants %v", line, ids)
	}
}

// TestTheEndOfAWaitSaysWhatRefusesTheRequestThen, and not what did when it began to wait.
func TestTheEndOfAWaitSaysWhatRefusesTheRequestThen(t *testing.T) {
	s := newServer(t)
	s.full(t)
	boot, err := s.Node().Host.BootID()
	daemontest.Must(t, err)
	s.inventory(t, "another boot")
	c := newClient()
	c.before = func() { s.inventory(t, boot) } // it waits by now
	<-s.sendsToWait(t.Context(), c, time.Millisecond)
	c.waits(t, `{"place":1,"of":1}`)
	line := <-c.lines
	if !strings.Contains(line, string(grant.NoCapacity)) || strings.Contains(line, "boot") {
		t.Errorf("the client reads %s", line)
	}
}

// TestARequestIsSentAgainBeforeItsAnswer: the first is granted, and cannot be answered. The second
// has its grant, which is not taken back.
func TestARequestIsSentAgainBeforeItsAnswer(t *testing.T) {
	s := newServer(t)
	first, second := &client{gone: true}, newClient()
	var over chan struct{}
	var ids []grant.ID
	s.Nodes = func(ctx context.Context) error {
		if over == nil { // the first has its grant, and is going to be answered
			ids = s.granted(t, ada)
			over = s.sends(t.Context(), second)
			select {
			case <-ctx.Done():
			case <-over:
			}
		}
		return nil
	}
	<-s.sends(t.Context(), first)
	<-over
	line := <-second.lines
	if len(ids) != 1 || !slices.Equal(s.granted(t, ada), ids) || !strings.Contains(line, string(ids[0])) {
		t.Errorf("the client reads %sand has the grants %v", line, ids)
	}
	if len(s.attempts.last) != 0 {
		t.Errorf("%d requests are kept", len(s.attempts.last))
	}
}

// TestWhatNoClientKnowsIsTakenBack: what was granted to a client that is gone, or that was sent
// again by one that is gone before it is served.
func TestWhatNoClientKnowsIsTakenBack(t *testing.T) {
	for _, sentAgain := range []bool{false, true} {
		s := newServer(t)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		var over chan struct{}
		granted := 0
		s.Nodes = func(ctx context.Context) error { // the first has its grant, and is going to be answered
			granted = len(s.granted(t, ada))
			if sentAgain {
				over = s.sends(gone, newClient())
				<-ctx.Done()
			}
			return nil
		}
		<-s.sends(t.Context(), &client{gone: true})
		if sentAgain {
			<-over
		}
		if ids := s.granted(t, ada); granted != 1 || len(ids) != 0 {
			t.Errorf("sent again: %v: ada had %d grants, and has %v", sentAgain, granted, ids)
		}
	}
}

// TestAttemptsWait: a request that is sent again is not served before the earlier one is over.
func TestAttemptsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a attempts
		who := identity{uid: ada, secret: "secret"}
		ctx, _, end := a.begin(t.Context(), who)
		later := make(chan func(), 2)
		for range 2 {
			go func() {
				_, _, end := a.begin(t.Context(), who)
				later <- end
			}()
			synctest.Wait()
		}
		_, _, others := a.begin(t.Context(), identity{uid: bert, secret: "secret"})
		_, _, roots := a.begin(t.Context(), identity{uid: ada, root: true, secret: "secret"})
		if len(later) > 0 || !isSentAgain(ctx) {
			t.Fatal("two are served at once")
		}
		end()
		(<-later)()
		(<-later)()
		others()
		roots()
		if len(a.last) != 0 {
			t.Errorf("%d requests are kept", len(a.last))
		}
	})
}
