package userqueue

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/gpu"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// withGPU is a node with a GPU of 8 GiB, and an inventory of this boot or of another.
type withGPU struct {
	*daemontest.TestNode
	queue Queue
	t     *testing.T
}

func newWithGPU(t *testing.T) *withGPU {
	n := &withGPU{TestNode: daemontest.NewNode(t), t: t}
	n.Policy.Inventory.Source = "test"
	boot, err := n.Host.BootID()
	daemontest.Must(t, err)
	n.inventory(boot)
	return n
}

func (n *withGPU) inventory(boot string) {
	n.inventoryOf(boot, grant.GPU{UUID: daemontest.GPU, Memory: 8 * grant.GiB, Health: grant.Healthy})
}

func (n *withGPU) inventoryOf(boot string, card grant.GPU) {
	daemontest.Must(n.t, gpu.Write(gpu.Path(n.Policy.StateDir),
		grant.Inventory{BootID: boot, Source: "test", GPUs: []grant.GPU{card}}))
}

// answers has the GPU answer, or not.
func (n *withGPU) answers(answers bool) {
	boot, err := n.Host.BootID()
	daemontest.Must(n.t, err)
	if n.inventory(boot); !answers { // what NVML gives of a lost GPU
		n.inventoryOf(boot, grant.GPU{UUID: daemontest.GPU, Health: "GPU is lost"})
	}
}

// asks has root ask for memory; user tells requests apart.
func (n *withGPU) asks(user uint32, secret string, memory grant.Bytes) (grant.Grant, *Waiter, error) {
	return n.asksFor(admission.Ask{Mode: grant.Limit, GPUs: 1, Memory: memory, User: user, Secret: secret})
}

func (n *withGPU) asksFor(ask admission.Ask) (grant.Grant, *Waiter, error) {
	ask.Owner, ask.Source = grant.Bearer, "test"
	return n.queue.GrantOrWait(func() *node.Node { return n.Node }, grants.Read,
		Request{User: ask.User, Waits: true, Ask: ask})
}

// full is a disk that has no room for files below a directory.
type full struct{ dir string }

func (f full) Before(s host.Step) error {
	if s.Kind == host.Creates && strings.HasPrefix(s.Path, f.dir) {
		return unix.ENOSPC
	}
	return nil
}

func (f full) After(host.Step, error) {}
func (f full) Random() [16]byte       { return [16]byte{1} }

// onFullDisk does something while the disk has no room for the ledger.
func (n *withGPU) onFullDisk(do func()) {
	host.Simulated = full{n.Policy.StateDir}
	defer func() { host.Simulated = nil }()
	do()
}

// TestWhoWaitsGoesOnWaiting while the ledger is locked, cannot be written or has no inventory of
// this boot.
func TestWhoWaitsGoesOnWaiting(t *testing.T) {
	for name, pass := range map[string]func(n *withGPU) error{
		"no inventory": func(n *withGPU) error {
			n.inventory("00000000-0000-0000-0000-000000000000")
			return n.queue.Pass(n.Node, grants.Read)
		},
		"locked": func(n *withGPU) (err error) {
			n.Ledger.Wait = 10 * time.Millisecond
			daemontest.Must(t, ledger.Open(n.Ledger.Options).Update(func(*ledger.Tx) error {
				err = n.queue.Pass(n.Node, grants.Read)
				return nil
			}))
			return err
		},
		"full disk": func(n *withGPU) (err error) {
			n.onFullDisk(func() { err = n.queue.Pass(n.Node, grants.Read) })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newWithGPU(t)
			full, _, err := n.asks(60001, "first", 8*grant.GiB)
			daemontest.Must(t, err)
			var waiting []*Waiter
			for i, secret := range []string{"second", "third", "fourth"} {
				_, w, err := n.asks(60002+uint32(i), secret, grant.GiB)
				if w == nil {
					t.Fatal(err)
				}
				waiting = append(waiting, w)
			}
			_, err = grants.Release(n.Node, full.ID, false)
			daemontest.Must(t, err)
			if err := pass(n); err == nil {
				t.Error("no error")
			}
			for i, w := range waiting {
				if place, _ := n.queue.Place(w); place == 0 {
					t.Errorf("request %d does not wait any more: %+v", i, n.queue.Leave(w))
				}
			}
		})
	}
}

// TestWhoWaitsForAGPUThatDoesNotAnswer has it when it answers again. One that answers, and has
// nothing to grant, is not waited for.
func TestWhoWaitsForAGPUThatDoesNotAnswer(t *testing.T) {
	n := newWithGPU(t)
	full, _, err := n.asks(60001, "first", 8*grant.GiB)
	daemontest.Must(t, err)
	_, w, err := n.asks(60002, "second", grant.GiB)
	if w == nil {
		t.Fatal(err)
	}
	n.answers(false)
	_, err = grants.Release(n.Node, full.ID, false)
	daemontest.Must(t, err, n.queue.Pass(n.Node, grants.Read))
	if place, _ := n.queue.Place(w); place != 1 {
		t.Fatalf("it does not wait any more: %+v", n.queue.Leave(w))
	}
	n.answers(true)
	daemontest.Must(t, n.queue.Pass(n.Node, grants.Read))
	if out := n.queue.Leave(w); out == nil || out.Err != nil {
		t.Errorf("it has %+v", out)
	}
	n.answers(false)
	mine := grant.Quota{Memory: grant.Size(16 * grant.GiB), Modes: []grant.Mode{grant.Exclusive}}
	for i, ask := range []admission.Ask{{Mode: grant.Exclusive, GPUs: 1, Quota: &mine},
		{Mode: grant.MIG, Memory: grant.GiB}} { // whose memory, and whose MIG devices, are unknown
		ask.User = uint32(60010 + i)
		if _, w, err := n.asksFor(ask); w == nil {
			t.Errorf("mode %s: %v", ask.Mode, err)
		}
	}
	boot, err := n.Host.BootID()
	daemontest.Must(t, err)
	for _, health := range []string{grant.Unpartitioned, grant.NoMemory} {
		n.inventoryOf(boot, grant.GPU{UUID: daemontest.GPU, Health: health})
		if _, w, err := n.asks(60003, "third", grant.GiB); w != nil || err == nil {
			t.Errorf("%s: it waits, or %v", health, err)
		}
	}
}

// goneProgram is a program whose process is gone, which is seen at once or later.
type goneProgram struct{ seen bool }

func (p goneProgram) Enter(n *node.Node, ask admission.Ask) (grant.Grant, error) {
	g, err := grants.EnterProgram(n, ask, grants.Program{Process: grant.Process{PID: 1 << 30, Start: 1},
		Is: func() bool { return !p.seen }})
	return g.Grant, err
}

func (goneProgram) Rejoin(*node.Node, grant.Grant) error { return nil }

// TestAProgramThatIsGone does not wait any more, and keeps no other from what is free.
func TestAProgramThatIsGone(t *testing.T) {
	for _, seen := range []bool{true, false} {
		n := newWithGPU(t)
		ask := admission.Ask{Owner: grant.Bearer, Mode: grant.Limit, GPUs: 1, Memory: grant.GiB,
			Source: "test"}
		gone := n.queued(Request{User: 60001, Ask: ask, For: goneProgram{seen}})
		other := n.queued(Request{User: 60002, Ask: ask})
		daemontest.Must(t, n.queue.Pass(n.Node, grants.Read))
		if out := n.queue.Leave(gone); out == nil || out.Err == nil {
			t.Errorf("seen: %v: the program has %+v", seen, out)
		}
		if out := n.queue.Leave(other); out == nil || out.Err != nil {
			t.Errorf("seen: %v: the other request has %+v", seen, out)
		}
	}
}

// queued enters a request that waits.
func (n *withGPU) queued(r Request) *Waiter {
	n.t.Helper()
	r.Waits = true
	w, err := n.queue.enter(r)
	daemontest.Must(n.t, err)
	return w
}

// TestWhoWaitsGoesOnWaitingForGroups that cannot be read for a moment. Others are granted.
func TestWhoWaitsGoesOnWaitingForGroups(t *testing.T) {
	daemontest.BrokenDirectory(t)
	n := newWithGPU(t)
	n.Policy.Quotas = []grant.Quota{{User: "60003"}, {User: daemontest.UserOfDirectory(t)}, {User: "60004"}}
	ask := admission.Ask{Owner: grant.Bearer, Mode: grant.Limit, GPUs: 1, Memory: grant.GiB,
		Source: grant.ByUser}
	var waiting []*Waiter
	for _, user := range []uint32{60004, 60003} {
		ask.User = user
		waiting = append(waiting, n.queued(Request{User: user, Ask: ask}))
	}
	if _, err := QuotaOf(n.Node, 60004); err == nil {
		t.Error("the quota is known")
	}
	daemontest.Must(t, n.queue.Pass(n.Node, grants.Read))
	if place, _ := n.queue.Place(waiting[0]); place != 1 {
		t.Errorf("it does not wait any more: %+v", n.queue.Leave(waiting[0]))
	}
	if out := n.queue.Leave(waiting[1]); out == nil || out.Err != nil {
		t.Errorf("the other one: %+v", out)
	}
}

// TestWhoAsksWhileGroupsCannotBeRead waits, if the request does.
func TestWhoAsksWhileGroupsCannotBeRead(t *testing.T) {
	daemontest.BrokenDirectory(t)
	n := newWithGPU(t)
	n.Policy.Quotas = []grant.Quota{{User: daemontest.UserOfDirectory(t)}, {User: "60004"}}
	ask := admission.Ask{Owner: grant.Bearer, Mode: grant.Limit, GPUs: 1, Memory: grant.GiB,
		Source: grant.ByUser, User: 60004}
	for _, waits := range []bool{false, true} {
		_, w, err := n.queue.GrantOrWait(func() *node.Node { return n.Node }, grants.Read,
			Request{User: 60004, Ask: ask, Waits: waits})
		if (w != nil) != waits || !isUnknown(err) {
			t.Errorf("waits: %v: %v, %v", waits, w, err)
		}
	}
}

// TestWhoWaitsIsJudgedByTheInventoryOfNow: one that was read before the ledger's lock may be older.
func TestWhoWaitsIsJudgedByTheInventoryOfNow(t *testing.T) {
	n := newWithGPU(t)
	_, _, err := n.asks(60001, "first", grant.GiB)
	daemontest.Must(t, err)
	_, w, err := n.asks(60002, "second", 8*grant.GiB)
	if w == nil {
		t.Fatal(err)
	}
	daemontest.Must(t, n.queue.Pass(n.Node, func(n *node.Node) (grants.Overview, error) {
		o, err := grants.Read(n)
		o.Inventory.GPUs = []grant.GPU{{UUID: daemontest.GPU, Memory: 4 * grant.GiB, Health: grant.Healthy}}
		return o, err
	}))
	if place, _ := n.queue.Place(w); place != 1 {
		t.Errorf("it does not wait any more: %+v", n.queue.Leave(w))
	}
}

// TestPassWaitsForNoDirectory: a pass goes on while names are looked up for the first time, and the
// next one knows them.
func TestPassWaitsForNoDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock stands still while a program runs
		answers := t.TempDir() + "/answers"
		daemontest.Directory(t, "exit 1", "for i in $(seq 500); do\n[ -e "+answers+" ] && exit 2\n"+
			"sleep 0.02; done\nexit 1")
		n := newWithGPU(t)
		n.Policy.Quotas = []grant.Quota{{User: daemontest.UserOfDirectory(t)}, {User: "60003"}}
		w := n.queued(Request{User: 60003, Ask: admission.Ask{Owner: grant.Bearer, Mode: grant.Limit, GPUs: 1,
			Memory: grant.GiB, Source: grant.ByUser, User: 60003}})
		daemontest.Must(t, n.queue.Pass(n.Node, grants.Read))
		daemontest.Must(t, os.WriteFile(answers, nil, 0o600))
		synctest.Wait()
		daemontest.Must(t, n.queue.Pass(n.Node, grants.Read))
		if out := n.queue.Leave(w); out == nil || out.Err != nil {
			t.Errorf("its outcome is %+v", out)
		}
	})
}

// readings counts how often a file is read.
type readings struct {
	path  string
	times int
}

func (r *readings) Before(s host.Step) error {
	if s.Kind == host.Reads && s.Path == r.path {
		r.times++
	}
	return nil
}

func (r *readings) After(host.Step, error) {}
func (r *readings) Random() [16]byte       { return [16]byte{1} }

// TestPassReadsTheInventoryOnce for all who wait, beside the reading of the ledger.
func TestPassReadsTheInventoryOnce(t *testing.T) {
	n := newWithGPU(t)
	_, _, err := n.asks(60001, "first", 8*grant.GiB)
	daemontest.Must(t, err)
	for user := range uint32(9) {
		if _, w, err := n.asks(60002+user, fmt.Sprint(user), grant.GiB); w == nil {
			t.Fatal(err)
		}
	}
	r := &readings{path: gpu.Path(n.Policy.StateDir)}
	host.Simulated = r
	defer func() { host.Simulated = nil }()
	daemontest.Must(t, n.queue.Pass(n.Node, grants.Read))
	if r.times != 2 {
		t.Errorf("it is read %d times", r.times)
	}
}

// TestWhoAsksWaitsForTheNode: a request may find no inventory yet, as one that is sent again after
// a restart of gpuledgerd, a ledger that is locked or cannot be written, or no GPU that answers.
func TestWhoAsksWaitsForTheNode(t *testing.T) {
	for name, asks := range map[string]func(n *withGPU) (w *Waiter, err error){
		"no inventory": func(n *withGPU) (w *Waiter, err error) {
			n.inventory("00000000-0000-0000-0000-000000000000")
			_, w, err = n.asks(60001, "first", grant.GiB)
			boot, e := n.Host.BootID()
			daemontest.Must(t, e)
			n.inventory(boot)
			return w, err
		},
		"locked": func(n *withGPU) (w *Waiter, err error) {
			n.Ledger.Wait = 10 * time.Millisecond
			daemontest.Must(t, ledger.Open(n.Ledger.Options).Update(func(*ledger.Tx) error {
				_, w, err = n.asks(60001, "first", grant.GiB)
				return nil
			}))
			return w, err
		},
		"full disk": func(n *withGPU) (w *Waiter, err error) {
			n.onFullDisk(func() { _, w, err = n.asks(60001, "first", grant.GiB) })
			return w, err
		},
		"no GPU that answers": func(n *withGPU) (w *Waiter, err error) {
			n.answers(false)
			_, w, err = n.asks(60001, "first", grant.GiB)
			n.answers(true)
			return w, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newWithGPU(t)
			w, err := asks(n)
			if w == nil || err == nil {
				t.Fatalf("it does not wait: %v", err)
			}
			daemontest.Must(t, n.queue.Pass(n.Node, grants.Read))
			if out := n.queue.Leave(w); out == nil || out.Err != nil {
				t.Errorf("it has %+v", out)
			}
		})
	}
}
