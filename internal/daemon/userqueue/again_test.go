package userqueue

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// unreadable fails what is read of a directory, while it is set.
type unreadable struct{ dir string }

func (u *unreadable) Before(s host.Step) error {
	if s.Kind == host.Reads && s.Path == u.dir {
		return unix.EIO
	}
	return nil
}

func (u *unreadable) After(host.Step, error) {}
func (u *unreadable) Random() [16]byte       { return [16]byte{1} }

// TestARequestSentAgainFindsItsGrant, or fails if the ledger cannot be read: a grant that may be
// there is not made again.
func TestARequestSentAgainFindsItsGrant(t *testing.T) {
	n := daemontest.NewNode(t)
	id := n.Grant('a')
	daemontest.Must(t, n.Ledger.Update(func(tx *ledger.Tx) error {
		g, err := tx.Get(id)
		if err != nil {
			return err
		}
		g.User, g.Source, g.Secret = 60001, grant.ByUser, grant.SecretHash("secret")
		return tx.Put(g)
	}))
	ask := func() (grant.Grant, error) {
		g, waiter, err := (&Queue{}).GrantOrWait(func() *node.Node { return n.Node }, grants.Read,
			Request{User: 60001, Ask: admission.Ask{User: 60001, Source: grant.ByUser, Secret: "secret"}})
		if waiter != nil {
			t.Error("it waits")
		}
		return g, err
	}
	if g, err := ask(); err != nil || g.ID != id {
		t.Errorf("%s, %v; want %s", g.ID, err, id)
	}
	host.Simulated = &unreadable{n.Policy.StateDir + "/grants"}
	defer func() { host.Simulated = nil }()
	if g, err := ask(); !errors.Is(err, unix.EIO) {
		t.Errorf("%s, %v; want that the ledger cannot be read", g.ID, err)
	}
}

// TestARequestForAnOwnerIsSentAgain: it finds its grant, also that of a pod, which has no secret.
// Another request for the owner is refused.
func TestARequestForAnOwnerIsSentAgain(t *testing.T) {
	for _, owner := range []grant.Owner{"pod:u/c", "claim:u"} {
		n := newWithGPU(t)
		asks := func(secret string) (grant.Grant, error) {
			g, _, err := (&Queue{}).GrantOrWait(func() *node.Node { return n.Node }, grants.Read, Request{
				Ask: admission.Ask{Owner: owner, Memory: grant.GiB, GPUs: 1, Mode: grant.Limit, Source: "cli",
					Secret: strings.Repeat(secret, 16)}})
			return g, err
		}
		first, err := asks("ab")
		daemontest.Must(t, err)
		if again, err := asks("ab"); err != nil || again.ID != first.ID {
			t.Errorf("%s: sent again it gets %q, %v; want %s", owner, again.ID, err, first.ID)
		}
		var r *grant.Refusal
		if other, err := asks("cd"); !errors.As(err, &r) || r.Code != grant.GrantInUse {
			t.Errorf("%s: another request gets %q, %v", owner, other.ID, err)
		}
	}
}
