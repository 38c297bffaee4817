package grants_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
)

// TestAStateDirectoryThatIsAwayEndsNoUse: a container runs while the state directory is another
// one for a while: not mounted, or an older copy. Its grant is in use when the right one is back,
// and its limit stays.
func TestAStateDirectoryThatIsAwayEndsNoUse(t *testing.T) {
	n := daemontest.NewNode(t)
	oneCard(t, n)
	t.Cleanup(func() { _ = unix.Unmount(n.Policy.LimitsRoot(), unix.MNT_DETACH) })
	used, unused := n.Grant('a'), n.Grant('b')
	daemontest.Must(t, n.Ledger.Update(func(tx *ledger.Tx) error {
		for _, id := range []grant.ID{used, unused} {
			g, err := tx.Get(id)
			daemontest.Must(t, err)
			g.Source = grant.Asked // it ends with its container
			daemontest.Must(t, tx.Put(g), limitfiles.Write(n.Policy, g))
		}
		return nil
	}))
	n.Start(used, "lives")
	ended := n.Start(used, "ends")
	state := n.Policy.StateDir
	daemontest.Must(t, os.Rename(state, state+".away"))
	daemontest.End(ended)
	n.Delete(n.Root, "ends") // as its runtime does
	report, err := grants.Reconcile(n.Node)
	daemontest.Must(t, err)
	if report.Sound() {
		t.Error("a ledger that lacks a running container's grant is sound")
	}
	daemontest.Must(t, os.RemoveAll(state), os.Rename(state+".away", state))
	_, err = grants.Reconcile(n.Node)
	daemontest.Must(t, err)
	o, err := grants.Read(n.Node)
	daemontest.Must(t, err)
	if len(o.Grants) == 0 || o.Grants[0].ID != used || len(o.Grants[0].Bindings) != 1 {
		t.Errorf("of a running container's grant is left: %+v", o.Grants)
	}
	for id, want := range map[grant.ID]bool{used: true, unused: false} {
		if _, err := os.Stat(n.Policy.LimitsDir(id)); (err == nil) != want {
			t.Errorf("the limits of %s: %v, want them %v", id, err, want)
		}
	}
}

// syncs notes which directories are synced.
type syncs map[string]bool

func (syncs) Random() (r [16]byte)          { return r }
func (s syncs) Before(step host.Step) error { return nil }
func (s syncs) After(step host.Step, err error) {
	s[step.Path] = s[step.Path] || step.Kind == host.SyncsDir && err == nil
}

const (
	user   = 60001
	secret = "abababababababababababababababab"
)

// nodeOfUser has a grant that the user asked for with the secret.
func nodeOfUser(t *testing.T) (*daemontest.TestNode, grant.ID) {
	t.Helper()
	n := daemontest.NewNode(t)
	id := n.Grant('a')
	daemontest.Must(t, n.Ledger.Update(func(tx *ledger.Tx) error {
		g, err := tx.Get(id)
		daemontest.Must(t, err)
		g.User, g.Secret = user, grant.SecretHash(secret)
		return tx.Put(g)
	}))
	return n, id
}

// TestAGrantThatIsFoundIsDurable: the program that made it may have been killed before it was.
func TestAGrantThatIsFoundIsDurable(t *testing.T) {
	n, id := nodeOfUser(t)
	seen := syncs{}
	host.Simulated = seen
	defer func() { host.Simulated = nil }()
	g, found, err := grants.FindBySecret(n.Node, user, secret)
	if !found || g.ID != id || err != nil || !seen[n.Policy.StateDir+"/grants"] {
		t.Errorf("%v, %s, %v; synced %v", found, g.ID, err, seen)
	}
}

// TestWhoseGrantIsFound: only its user's, with its secret, until it is released: its container may
// run for long after that.
func TestWhoseGrantIsFound(t *testing.T) {
	other := strings.Repeat("cd", 16)
	n, id := nodeOfUser(t)
	oneCard(t, n)
	n.Start(id, "lives")
	finds := func(user uint32, secret string) bool {
		_, found, err := grants.FindBySecret(n.Node, user, secret)
		daemontest.Must(t, err)
		return found
	}
	if !finds(user, secret) || finds(user, other) || finds(user+1, secret) {
		t.Errorf("its user's %v, with another secret %v, another user's %v", finds(user, secret),
			finds(user, other), finds(user+1, secret))
	}
	g, err := grants.Release(n.Node, id, false)
	daemontest.Must(t, err)
	if !g.Draining || finds(user, secret) {
		t.Errorf("draining %v, and found %v", g.Draining, finds(user, secret))
	}
}

// unreadable fails one read of each of these paths, in this order.
type unreadable []string

func (*unreadable) Random() (r [16]byte)   { return r }
func (*unreadable) After(host.Step, error) {}
func (u *unreadable) Before(step host.Step) error {
	if step.Kind != host.Reads || len(*u) == 0 || step.Path != (*u)[0] {
		return nil
	}
	*u = (*u)[1:]
	return unix.EIO
}

// TestAGrantIsFoundAfterAnErrorOfTheDisk: a request whose grant cannot be read just then would get
// a second one. If the ledger cannot be read then, that is an error. An entry that cannot be read
// twice is passed over.
func TestAGrantIsFoundAfterAnErrorOfTheDisk(t *testing.T) {
	n, id := nodeOfUser(t)
	dir := n.Policy.StateDir + "/grants"
	entry := dir + "/" + string(id) + ".json"
	defer func() { host.Simulated = nil }()
	for _, c := range []struct {
		unreadable unreadable
		found      bool
		err        error
	}{{unreadable{entry}, true, nil}, {unreadable{entry, dir}, false, unix.EIO},
		{unreadable{entry, entry}, false, nil}} {
		disk := slices.Clone(c.unreadable)
		host.Simulated = &disk
		g, found, err := grants.FindBySecret(n.Node, user, secret)
		if len(disk) > 0 || found != c.found || found && g.ID != id || !errors.Is(err, c.err) {
			t.Errorf("%v: %v, %s, %v; not read: %v", c.unreadable, found, g.ID, err, disk)
		}
	}
}
