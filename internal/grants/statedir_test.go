package grants_test

import (
	"os"
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

// TestAGrantThatIsFoundIsDurable: the program that made it may have been killed before it was.
func TestAGrantThatIsFoundIsDurable(t *testing.T) {
	const user = 60001
	secret := strings.Repeat("ab", 16)
	n := daemontest.NewNode(t)
	id := n.Grant('a')
	daemontest.Must(t, n.Ledger.Update(func(tx *ledger.Tx) error {
		g, err := tx.Get(id)
		daemontest.Must(t, err)
		g.User, g.Secret = user, grant.SecretHash(secret)
		return tx.Put(g)
	}))
	seen := syncs{}
	host.Simulated = seen
	defer func() { host.Simulated = nil }()
	g, found, err := grants.FindBySecret(n.Node, user, secret)
	if !found || g.ID != id || err != nil || !seen[n.Policy.StateDir+"/grants"] {
		t.Errorf("%v, %s, %v; synced %v", found, g.ID, err, seen)
	}
}
