package userserver

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

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
	daemontest.Must(t, gpu.Write(gpu.Path(n.Policy.StateDir), grant.Inventory{BootID: boot, Source: "test",
		GPUs: []grant.GPU{{UUID: daemontest.GPU, Memory: 8 * grant.GiB, Health: grant.Healthy}}}))
	s.Ledger, s.Nodes = grants.Read, func(context.Context) error { return nil }
	return s
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
}
