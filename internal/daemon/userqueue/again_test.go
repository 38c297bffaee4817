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

// failing is a disk that fails when a file of the directory has its name: it neither syncs the name
// nor takes it back.
type failing struct {
	dir    string
	broken bool // from then on
}

func (f *failing) Before(s host.Step) error {
	switch {
	case s.Kind == host.Renames && strings.HasPrefix(s.To, f.dir):
		f.broken = true
	case f.broken && s.Kind == host.SyncsDir && s.Path == f.dir,
		f.broken && s.Kind == host.Removes && strings.HasPrefix(s.Path, f.dir):
		return unix.EIO
	}
	return nil
}

func (f *failing) After(host.Step, error) {}
func (f *failing) Random() [16]byte       { return [16]byte{1} }

// rejoined is a program that notes the grant which it has rejoined.
type rejoined struct{ id grant.ID }

func (*rejoined) Enter(n *node.Node, ask admission.Ask) (grant.Grant, error) {
	g, _, err := grants.Enter(n, ask)
	return g, err
}

func (r *rejoined) Rejoin(_ *node.Node, g grant.Grant) error {
	r.id = g.ID
	return nil
}

// TestARequestHasTheGrantThatCouldNotBeTakenBack: it goes on waiting after an error of the disk,
// and gets no second grant. A program uses the one that is there.
func TestARequestHasTheGrantThatCouldNotBeTakenBack(t *testing.T) {
	n := newWithGPU(t)
	program := &rejoined{}
	w := n.queued(Request{User: 60001, For: program, Ask: admission.Ask{Owner: grant.Bearer, User: 60001,
		Secret: "secret", Mode: grant.Limit, GPUs: 1, Memory: grant.GiB, Source: "test"}})
	host.Simulated = &failing{dir: n.Policy.StateDir + "/grants"}
	defer func() { host.Simulated = nil }()
	for _, when := range []string{"the grant cannot be taken back", "it is there, and not durable"} {
		err := n.queue.Pass(n.Node, grants.Read)
		if place, _ := n.queue.Place(w); !errors.Is(err, unix.EIO) || place == 0 || len(n.grants()) != 1 {
			t.Fatalf("%s: %v, place %d, %+v", when, err, place, n.grants())
		}
	}
	host.Simulated = nil
	daemontest.Must(t, n.queue.Pass(n.Node, grants.Read))
	out, now := n.queue.Leave(w), n.grants()
	if out == nil || out.Err != nil || len(now) != 1 || out.Grant.ID != now[0].ID || program.id != now[0].ID {
		t.Errorf("it has %+v of %+v, and has rejoined %s", out, now, program.id)
	}
}

func (n *withGPU) grants() []grant.Grant {
	n.t.Helper()
	o, err := grants.Read(n.Node)
	daemontest.Must(n.t, err)
	return o.Grants
}
