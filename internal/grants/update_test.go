package grants_test

import (
	"bufio"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/limitfiles"
	"github.com/gpuledger/gpuledger/internal/limits"
)

// stuck is a disk that takes a grant's new file and then fails, also at undoing that.
type stuck struct {
	grants  string
	renamed bool
}

func (d *stuck) Random() (r [16]byte) { return r }

func (d *stuck) Before(s host.Step) error {
	undoes := s.Kind == host.Renames && strings.HasSuffix(s.Path, ".old")
	if s.Kind == host.Mounts { // the directory itself will do
		return host.ErrMade
	}
	if d.renamed && (undoes || s.Kind == host.SyncsDir && s.Path == d.grants) {
		return unix.EIO
	}
	return nil
}

func (d *stuck) After(s host.Step, err error) {
	d.renamed = d.renamed || err == nil && s.Kind == host.Renames && filepath.Dir(s.To) == d.grants
}

// oneCard writes the node's inventory: a GPU of 1 GiB.
func oneCard(t *testing.T, n *daemontest.TestNode) {
	t.Helper()
	boot, err := n.Host.BootID()
	n.Policy.Inventory.Source = "test"
	card := grant.GPU{UUID: daemontest.GPU, Memory: grant.GiB, Health: grant.Healthy}
	daemontest.Must(t, err, gpu.Write(gpu.Path(n.Policy.StateDir),
		grant.Inventory{BootID: boot, Source: "test", GPUs: []grant.GPU{card}}))
}

// TestAQuotaJudgesALongerTime: root may grant a user what the user's quota does not have. The user
// cannot make it last longer.
func TestAQuotaJudgesALongerTime(t *testing.T) {
	const user = 60001
	limit, exclusive := []grant.Mode{grant.Limit}, []grant.Mode{grant.Exclusive}
	for name, c := range map[string]struct {
		quota grant.Quota
		ok    bool
	}{
		"another mode":     {quota: grant.Quota{Modes: limit}},
		"less memory":      {quota: grant.Quota{Modes: exclusive, Memory: grant.Size(grant.MiB)}},
		"less time":        {quota: grant.Quota{Modes: exclusive, TTL: "1m"}},
		"with enough room": {quota: grant.Quota{Modes: exclusive, Memory: grant.Size(grant.GiB)}, ok: true},
	} {
		n := daemontest.NewNode(t)
		oneCard(t, n)
		g, _, err := grants.Enter(n.Node, admission.Ask{Mode: grant.Exclusive, GPUs: 1, Owner: grant.Bearer,
			User: user, TTL: time.Hour})
		daemontest.Must(t, err)
		for _, ttl := range []time.Duration{2 * time.Hour, 0} {
			_, err = grants.UpdateOf(n.Node, g.ID, grants.Change{TTL: &ttl}, user, c.quota)
			var refused *grant.Refusal
			if errors.As(err, &refused) && (refused.Code != grant.QuotaExceeded ||
				!strings.HasPrefix(refused.Message, "cannot make the grant last longer: ")) ||
				(err == nil) != c.ok {
				t.Errorf("%s: --ttl %s: %v", name, ttl, err)
			}
		}
		shorter := time.Second
		if _, err := grants.UpdateOf(n.Node, g.ID, grants.Change{TTL: &shorter}, user, c.quota); err != nil {
			t.Errorf("%s: less time is refused: %v", name, err)
		}
	}
}

// TestAShrinkThatCannotBeUndone: the record of a limit says no more than the grant, although the
// caller got an error.
func TestAShrinkThatCannotBeUndone(t *testing.T) {
	n := daemontest.NewNode(t)
	id := n.Grant('a')
	oneCard(t, n)
	o, err := grants.Read(n.Node)
	daemontest.Must(t, err)
	host.Simulated = &stuck{grants: n.Policy.StateDir + "/grants"}
	defer func() { host.Simulated = nil }()
	daemontest.Must(t, limitfiles.Write(n.Policy, o.Grants[0]))
	less := o.Grants[0].Memory() / 2
	if _, err := grants.Update(n.Node, id, grants.Change{Memory: &less}); !errors.Is(err, unix.EIO) {
		t.Fatalf("%v, want EIO", err)
	}
	o, err = grants.Read(n.Node)
	daemontest.Must(t, err)
	record, err := limits.Open(n.Policy.LimitsDir(id))
	daemontest.Must(t, err)
	defer record.Close()
	has, err := record.Bytes(daemontest.GPU)
	if o.Grants[0].Memory() != less || has != less || err != nil {
		t.Errorf("the record has %s (%v), want that of the grant, %s: %v", has, err, less, o.Grants)
	}
}

// TestAnUpdateAfterTheGPUsHaveOtherIndices: a boot numbers the GPUs of a grant the other way round.
// Its container gets the new size, and other grants are entered.
func TestAnUpdateAfterTheGPUsHaveOtherIndices(t *testing.T) {
	n := daemontest.NewNode(t)
	t.Cleanup(func() { _ = unix.Unmount(n.Policy.LimitsRoot(), unix.MNT_DETACH) })
	numbered := func(uuids ...string) {
		t.Helper()
		boot, err := n.Host.BootID()
		inv := grant.Inventory{BootID: boot, Source: "test"}
		n.Policy.Inventory.Source = "test"
		for i, uuid := range uuids {
			inv.GPUs = append(inv.GPUs,
				grant.GPU{UUID: uuid, Index: i, Minor: i, Memory: 8 * grant.GiB, Health: grant.Healthy})
		}
		daemontest.Must(t, err, gpu.Write(gpu.Path(n.Policy.StateDir), inv))
	}
	const a, b, c = daemontest.GPU, "GPU-00000000-0000-0000-0000-00000000000b",
		"GPU-00000000-0000-0000-0000-00000000000c"
	numbered(a, b, c)
	g, _, err := grants.Enter(n.Node, admission.Ask{Mode: grant.Limit, Memory: 4 * grant.GiB,
		Names: []string{a, b}, Owner: "pod:u-1/c"})
	daemontest.Must(t, err, limitfiles.Write(n.Policy, g))
	numbered(b, a, c)
	more := 6 * grant.GiB
	g, err = grants.Update(n.Node, g.ID, grants.Change{Memory: &more})
	if err != nil || g.GPUs[0].UUID != b {
		t.Errorf("%+v (%v), want the GPUs in their new order", g.GPUs, err)
	}
	record, err := limits.Open(n.Policy.LimitsDir(g.ID))
	daemontest.Must(t, err)
	defer record.Close()
	for _, uuid := range []string{a, b} {
		if has, err := record.Bytes(uuid); has != more/2 || err != nil {
			t.Errorf("%s is limited to %s (%v)", uuid, has, err)
		}
	}
	_, _, err = grants.Enter(n.Node, admission.Ask{Mode: grant.Limit, Memory: grant.GiB, Names: []string{c},
		Owner: "pod:u-2/c"})
	if err != nil {
		t.Errorf("another grant: %v", err)
	}
	if report, err := grants.Check(n.Node); err != nil || !report.Sound() {
		t.Errorf("check: %+v (%v)", report, err)
	}
}

// TestAGrantOfRunningClientsDoesNotShrink: a container in mode mps has its limits in its
// environment. Where the shim limits its memory, that can shrink.
func TestAGrantOfRunningClientsDoesNotShrink(t *testing.T) {
	n := daemontest.NewNode(t)
	boot, err := n.Host.BootID()
	n.Policy.Inventory.Source = "test"
	daemontest.Must(t, err, gpu.Write(gpu.Path(n.Policy.StateDir), grant.Inventory{BootID: boot,
		Source: "test", Driver: grant.Driver{Version: "580.65.06"},
		GPUs: []grant.GPU{{UUID: daemontest.GPU, Memory: 8 * grant.GiB, Health: grant.Healthy}}}))
	t.Cleanup(func() { _ = unix.Unmount(n.Policy.LimitsRoot(), unix.MNT_DETACH) })
	id := n.Grant('a')
	var g grant.Grant
	daemontest.Must(t, n.Ledger.Update(func(tx *ledger.Tx) (err error) {
		g, err = tx.Entry(id)
		g.Mode, g.Compute, g.GPUs[0].Memory = grant.MPS, 50, 4*grant.GiB
		return errors.Join(err, tx.Put(g))
	}))
	changes := func(memory grant.Bytes, compute int, why string) {
		t.Helper()
		g, err := grants.Update(n.Node, id, grants.Change{Memory: &memory, Compute: &compute})
		var refused *grant.Refusal
		switch {
		case why == "" && (err != nil || g.Memory() != memory || g.Compute != compute):
			t.Errorf("%s and %d %%: %+v (%v)", memory, compute, g, err)
		case why != "" && (!errors.As(err, &refused) || refused.Code != grant.GrantInUse ||
			!strings.HasSuffix(refused.Message, why)):
			t.Errorf("%s and %d %%: %v, want a refusal that ends with %q", memory, compute, err, why)
		}
	}
	changes(3*grant.GiB, 40, "") // no container has it
	container := n.Start(id, "runs")
	const stays = "keep what they have until they end: runs"
	changes(3*grant.GiB, 10, stays)
	changes(2*grant.GiB, 40, stays)
	changes(4*grant.GiB, 50, "")
	changes(4*grant.GiB, 0, "") // it may use more from its next start on
	changes(4*grant.GiB, 50, stays)
	daemontest.Must(t, limitfiles.Write(n.Policy, g))
	changes(2*grant.GiB, 0, "")
	daemontest.End(container)
	n.Delete(n.Root, "runs")
	changes(grant.GiB, 10, "")
}

// TestAChangeReachesBothKindsOfLimits: the driver limits one container of a grant, and the shim one
// that was created while gpuledgerd did not answer. The shim has a larger size after the driver.
func TestAChangeReachesBothKindsOfLimits(t *testing.T) {
	n := daemontest.NewNode(t)
	n.Policy.RunDir = daemontest.ShortDir(t)
	boot, err := n.Host.BootID()
	n.Policy.Inventory.Source = "test"
	self, e := n.Host.Self()
	daemontest.Must(t, err, e, gpu.Write(gpu.Path(n.Policy.StateDir), grant.Inventory{BootID: boot,
		Source: "test", GPUs: []grant.GPU{{UUID: daemontest.GPU, Memory: 8 * grant.GiB,
			Health: grant.Healthy}}}))
	t.Cleanup(func() { _ = unix.Unmount(n.Policy.LimitsRoot(), unix.MNT_DETACH) })
	id := n.Grant('a')
	daemontest.Must(t, n.Ledger.Update(func(tx *ledger.Tx) error {
		g, err := tx.Entry(id)
		return errors.Join(err, limitfiles.Write(n.Policy, g), tx.Bind(grant.Binding{Grant: id,
			RuntimeRoot: n.Root, Container: "c", Creator: self, Driven: true}))
	}))
	record, err := limits.Open(n.Policy.LimitsDir(id))
	daemontest.Must(t, err)
	defer record.Close()
	shim := func() grant.Bytes {
		has, err := record.Bytes(daemontest.GPU)
		daemontest.Must(t, err)
		return has
	}
	l, err := net.Listen("unix", n.Policy.LimitSocket())
	daemontest.Must(t, err)
	defer l.Close()
	var fails atomic.Bool
	asked := make(chan grant.Bytes, 8) // what the shim has at each request
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(conn).ReadString('\n')
			asked <- shim()
			if !fails.Load() || len(asked) == 1 { // the rehearsal
				_, _ = conn.Write([]byte(`{"version":1}` + "\n"))
			}
			_ = conn.Close()
		}
	}()
	for _, c := range []struct {
		to, want grant.Bytes
		fails    bool
		last     grant.Bytes // what the shim has at the driver's change
	}{
		{to: grant.GiB / 2, want: grant.GiB / 2, last: grant.GiB / 2},
		{to: 4 * grant.GiB, want: 4 * grant.GiB, last: grant.GiB / 2},
		{to: grant.GiB, want: 4 * grant.GiB, fails: true},
		{to: 8 * grant.GiB, want: 4 * grant.GiB, fails: true},
	} {
		fails.Store(c.fails)
		_, err := grants.Update(n.Node, id, grants.Change{Memory: &c.to})
		if (err != nil) != c.fails || shim() != c.want {
			t.Errorf("to %s: %v, and the shim has %s, want %s", c.to, err, shim(), c.want)
		}
		var last grant.Bytes
		for len(asked) > 0 {
			last = <-asked
		}
		if !c.fails && last != c.last {
			t.Errorf("to %s: the shim has %s while the driver's change is made, want %s", c.to, last, c.last)
		}
	}
}
