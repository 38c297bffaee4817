package userserver

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/users"
)

// Users without a name. No process of theirs runs.
const (
	ada  = 60001
	bert = 60002
)

// idleNode is a server on a node with user_nodes as given, and a grant of ada's and one of bert's,
// whose quotas take what is idle for an hour. The node of their GPU is /dev/full.
func idleNode(t *testing.T, userNodes grant.UserNodes) (s *Server, adas, berts grant.ID) {
	t.Helper()
	n := daemontest.NewNode(t)
	n.Policy.Quotas = []grant.Quota{{User: "60001", Idle: "1h"}, {User: "60002", Idle: "1h"}}
	n.Policy.Enforcement.UserNodes = userNodes
	n.Policy.Audit.File = t.TempDir() + "/audit.jsonl"
	enter := func(letter byte, user uint32) grant.ID {
		id := n.Grant(letter)
		daemontest.Must(t, n.Ledger.Update(func(tx *ledger.Tx) error {
			g, err := tx.Get(id)
			if err != nil {
				return err
			}
			g.User, g.Source = user, grant.ByUser
			return tx.Put(g)
		}))
		return id
	}
	adas, berts = enter('a', ada), enter('b', bert)
	log := logrus.New()
	log.SetOutput(io.Discard)
	s = &Server{Node: func() *node.Node { return n.Node }, Log: log,
		Ledger: func(n *node.Node) (grants.Overview, error) {
			o, err := grants.Read(n)
			o.Inventory = grant.Inventory{GPUs: []grant.GPU{{UUID: daemontest.GPU}}}
			return o, err
		},
		opened: openNodes{nodes: func(grant.Inventory) map[uint64]string {
			return map[uint64]string{unix.Mkdev(1, 7): daemontest.GPU}
		}}}
	return s, adas, berts
}

// opens starts a process of a user's that has the GPU's node open, and returns what ends it.
func opens(t *testing.T, user uint32) (end func()) {
	t.Helper()
	full, err := os.Open("/dev/full")
	daemontest.Must(t, err)
	defer full.Close()
	cmd := exec.Command("sleep", "1000")
	cmd.ExtraFiles = []*os.File{full}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	daemontest.Must(t, cmd.Start())
	t.Cleanup(func() { daemontest.End(cmd) })
	return func() { daemontest.End(cmd) }
}

// at is a clock that stands.
func at(when time.Time) func() time.Time { return func() time.Time { return when } }

// wantGrants runs a pass at a time and wants these grants to be left.
func (s *Server) wantGrants(t *testing.T, when time.Time, ids ...grant.ID) {
	t.Helper()
	daemontest.Must(t, s.releaseIdle(s.Node(), at(when)))
	o, err := grants.Read(s.Node())
	daemontest.Must(t, err)
	left := map[grant.ID]bool{}
	for _, g := range o.Grants {
		left[g.ID] = true
	}
	for _, id := range ids {
		if !left[id] {
			t.Errorf("grant %s is released, want it kept", id)
		}
	}
	if len(left) != len(ids) {
		t.Errorf("the grants %v are left, want %v", left, ids)
	}
}

// TestOpenNodeIsUse: where grants open nodes, one is in use while a process of its user has the
// node open, as in a rootless container. The time of idleness begins when that ends.
func TestOpenNodeIsUse(t *testing.T) {
	s, adas, berts := idleNode(t, grant.UserNodesACL)
	end := opens(t, ada)
	now := time.Now()
	s.wantGrants(t, now, adas, berts)
	s.wantGrants(t, now.Add(59*time.Minute), adas, berts)
	s.wantGrants(t, now.Add(time.Hour), adas)
	s.wantGrants(t, now.Add(3*time.Hour), adas)
	end()
	s.wantGrants(t, now.Add(4*time.Hour-time.Second), adas)
	s.wantGrants(t, now.Add(4*time.Hour))
}

// TestDueGrantIsLookedAtAgain: a node that was opened since the processes were read last keeps a
// grant, however short the time of idleness is.
func TestDueGrantIsLookedAtAgain(t *testing.T) {
	s, adas, _ := idleNode(t, grant.UserNodesACL)
	s.Node().Policy.Quotas[0].Idle = "2s"
	s.Node().Policy.Quotas[1].Idle = "1s"
	now := time.Now()
	daemontest.Must(t, s.releaseIdle(s.Node(), at(now)))
	opens(t, ada)
	s.wantGrants(t, now.Add(2*time.Second), adas)
}

// TestManyOpenFilesAreUse: a process that has too many open files to look through may have the GPU
// open, so its user's grant is in use.
func TestManyOpenFilesAreUse(t *testing.T) {
	s, adas, berts := idleNode(t, grant.UserNodesACL)
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ada, Gid: ada}}
	daemontest.Must(t, cmd.Start())
	defer daemontest.End(cmd)
	s.opened.open = func(host.Host, map[uint64]string) (map[string][]grant.Process, []int) {
		return nil, []int{cmd.Process.Pid}
	}
	now := time.Now()
	s.wantGrants(t, now, adas, berts)
	s.wantGrants(t, now.Add(time.Hour), adas)
}

// TestOpenNodeOfAnyUser: where every user opens every node, an open one says nothing of a grant.
func TestOpenNodeOfAnyUser(t *testing.T) {
	s, adas, berts := idleNode(t, grant.UserNodesMode)
	opens(t, ada)
	now := time.Now()
	s.wantGrants(t, now, adas, berts)
	s.wantGrants(t, now.Add(time.Hour))
}

// TestContainerBetweenTwoLooksIsUse: a container that came and went between two looks used the
// grant, so the time of idleness begins anew.
func TestContainerBetweenTwoLooksIsUse(t *testing.T) {
	s, adas, berts := idleNode(t, grant.UserNodesMode)
	now := time.Now()
	s.wantGrants(t, now, adas, berts)
	s.uses(t, adas)
	s.wantGrants(t, now.Add(time.Hour), adas)
	s.wantGrants(t, now.Add(2*time.Hour))
}

// TestContainerDuringALookIsUse: a container that came and went after a grant was found to be idle,
// and before it is released, used it.
func TestContainerDuringALookIsUse(t *testing.T) {
	s, adas, berts := idleNode(t, grant.UserNodesMode)
	now := time.Now()
	s.wantGrants(t, now, adas, berts)
	over, err := s.queue.ReleaseIdle(s.Node(), s.Ledger, at(now.Add(time.Hour)),
		func(_ grant.Inventory, g grant.Grant, due bool) bool {
			if due && g.ID == adas {
				s.uses(t, adas)
			}
			return false
		})
	if err != nil || len(over) != 1 || over[0].ID != berts {
		t.Errorf("released are %v, %v; want %s", over, err, berts)
	}
	s.wantGrants(t, now.Add(2*time.Hour), adas)
	s.wantGrants(t, now.Add(3*time.Hour))
}

// TestLookThatIsOld: a node that was opened while the daemon stood still, after the look that
// another grant was due for, is seen.
func TestLookThatIsOld(t *testing.T) {
	s, adas, berts := idleNode(t, grant.UserNodesACL)
	now := time.Now()
	s.wantGrants(t, now, adas, berts)
	look, looks := s.opened.nodes, 0
	s.opened.nodes = func(inv grant.Inventory) map[uint64]string {
		if looks++; looks == 1 {
			defer func() { opens(t, ada); opens(t, bert) }() // and stands still for five hours
			now = now.Add(5 * time.Hour)
			return nil
		}
		return look(inv)
	}
	now = now.Add(time.Hour)
	daemontest.Must(t, s.releaseIdle(s.Node(), func() time.Time { return now }))
	o, err := grants.Read(s.Node())
	if daemontest.Must(t, err); len(o.Grants) != 1 {
		t.Errorf("left are %v, want the grant that was looked at second", o.Grants)
	}
}

// TestContainerAfterTheReading: a container that came after a pass has read the ledger uses the
// grant until it ends, although the pass has its stamp.
func TestContainerAfterTheReading(t *testing.T) {
	s, adas, _ := idleNode(t, grant.UserNodesMode)
	read, now := s.Ledger, time.Now()
	var container *exec.Cmd
	s.Ledger = func(n *node.Node) (grants.Overview, error) {
		o, err := read(n)
		container = exec.Command("sleep", "1000")
		daemontest.Must(t, container.Start())
		p, _, e := n.Host.Process(container.Process.Pid)
		daemontest.Must(t, e)
		s.bind(t, adas, p)
		return o, err
	}
	daemontest.Must(t, s.releaseIdle(s.Node(), at(now)))
	s.Ledger = read
	daemontest.End(container)
	s.wantGrants(t, now.Add(2*time.Hour), adas)
	s.wantGrants(t, now.Add(3*time.Hour))
}

// noRename is a disk that gives no file of a grant another name.
type noRename grant.ID

func (d noRename) Random() (r [16]byte)   { return r }
func (d noRename) After(host.Step, error) {}
func (d noRename) Before(s host.Step) error {
	if s.Kind == host.Renames && filepath.Base(s.Path) == string(d)+".json" {
		return unix.EIO
	}
	return nil
}

// TestGrantThatCannotBeReleased: it keeps no other from its release, and is released by the next
// pass.
func TestGrantThatCannotBeReleased(t *testing.T) {
	s, adas, berts := idleNode(t, grant.UserNodesMode)
	now := time.Now()
	s.wantGrants(t, now, adas, berts)
	now = now.Add(time.Hour)
	host.Simulated = noRename(adas) // which is the first
	err := s.releaseIdle(s.Node(), at(now))
	host.Simulated = nil
	if o, e := grants.Read(s.Node()); !errors.Is(err, unix.EIO) || e != nil || len(o.Grants) != 1 {
		t.Errorf("%v; left are %v (%v), want one grant", err, o.Grants, e)
	}
	s.wantGrants(t, now)
}

// TestDaemonThatStandsStill: the time between the beginning of a pass and its look at a grant is
// not one in which nothing used the grant.
func TestDaemonThatStandsStill(t *testing.T) {
	s, adas, berts := idleNode(t, grant.UserNodesMode)
	read, now := s.Ledger, time.Now()
	s.Ledger = func(n *node.Node) (grants.Overview, error) {
		now = now.Add(5 * time.Hour)
		return read(n)
	}
	daemontest.Must(t, s.releaseIdle(s.Node(), func() time.Time { return now }))
	s.Ledger = read
	s.wantGrants(t, now.Add(59*time.Minute), adas, berts)
	s.wantGrants(t, now.Add(time.Hour))
}

// TestGroupsThatCannotBeRead: while it is not known whose quota is a user's, a later one does not
// take the user's grants back. The time of idle grants goes on.
func TestGroupsThatCannotBeRead(t *testing.T) {
	daemontest.BrokenDirectory(t)
	s, adas, berts := idleNode(t, grant.UserNodesMode)
	p, now := &s.Node().Policy, time.Now()
	known := p.Quotas
	s.wantGrants(t, now, adas, berts)
	p.Quotas = append([]grant.Quota{{User: daemontest.UserOfDirectory(t)}}, known...)
	_, _ = users.QuotaOf(p.Quotas, ada)
	for _, now := range []time.Time{now, now.Add(2 * time.Hour)} {
		err := s.releaseIdle(s.Node(), at(now))
		var unknown *users.LookupError
		if !errors.As(err, &unknown) || strings.Count(err.Error(), "cannot") != 2 {
			t.Errorf("%v, want once for all users that their names cannot be read", err)
		}
	}
	o, err := grants.Read(s.Node())
	if daemontest.Must(t, err); len(o.Grants) != 2 {
		t.Errorf("left are %v, want both", o.Grants)
	}
	p.Quotas = known
	s.wantGrants(t, now.Add(2*time.Hour))
}

// TestUseWhileGroupsCannotBeRead: what uses a grant meanwhile is seen, and grants of users whose
// quota is known are released.
func TestUseWhileGroupsCannotBeRead(t *testing.T) {
	daemontest.BrokenDirectory(t)
	s, adas, berts := idleNode(t, grant.UserNodesMode)
	n, now := s.Node(), time.Now()
	known := n.Policy.Quotas
	n.Policy.Quotas = []grant.Quota{known[1], {User: daemontest.UserOfDirectory(t)}, known[0]}
	uses := func(_ grant.Inventory, g grant.Grant, _ bool) bool { return g.ID == adas }
	_, _ = s.queue.ReleaseIdle(n, grants.Read, at(now), uses)
	over, _ := s.queue.ReleaseIdle(n, grants.Read, at(now.Add(time.Hour)), uses)
	if len(over) != 1 || over[0].ID != berts {
		t.Errorf("released are %v, want %s", over, berts)
	}
	n.Policy.Quotas = known
	s.wantGrants(t, now.Add(2*time.Hour-time.Minute), adas)
	s.wantGrants(t, now.Add(2*time.Hour))
}

// uses has a container that has ended already use a grant.
func (s *Server) uses(t *testing.T, id grant.ID) {
	t.Helper()
	over := exec.Command("true")
	daemontest.Must(t, over.Run())
	s.bind(t, id, grant.Process{PID: over.Process.Pid, Start: 1})
}

// bind has a container use a grant as long as its creator lives.
func (s *Server) bind(t *testing.T, id grant.ID, creator grant.Process) {
	t.Helper()
	daemontest.Must(t, s.Node().Ledger.Update(func(tx *ledger.Tx) error {
		return tx.Bind(grant.Binding{Grant: id, RuntimeRoot: t.TempDir(), Container: "short",
			Creator: creator})
	}))
}

// TestAFailedLookEndsNoIdleness: the time goes on while the ledger cannot be read.
func TestAFailedLookEndsNoIdleness(t *testing.T) {
	s, adas, berts := idleNode(t, grant.UserNodesMode)
	now := time.Now()
	s.wantGrants(t, now, adas, berts)
	read := s.Ledger
	s.Ledger = func(*node.Node) (grants.Overview, error) { return grants.Overview{}, errors.New("no room") }
	if err := s.releaseIdle(s.Node(), at(now.Add(30*time.Minute))); err == nil {
		t.Error("no error")
	}
	s.Ledger = read
	s.wantGrants(t, now.Add(time.Hour))
}
