package node_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// atStep does something before one of the steps that are made with the ledger locked.
type atStep struct {
	step   int
	do     func()
	locked bool
	done   bool
}

func (a *atStep) Before(s host.Step) error {
	switch a.locked = a.locked || s.Kind == host.TakesLock; {
	case !a.locked || a.done:
	case a.step == 0:
		a.done = true
		a.do()
	default:
		a.step--
	}
	return nil
}

func (a *atStep) After(host.Step, error) {}
func (a *atStep) Random() [16]byte       { return [16]byte{byte(a.step)} }

// TestWhatAnAdoptionTakesForFreeStaysFree: a container that adopted a whole GPU has ended, and
// another container of its name starts while the next one adopts that GPU. The old binding is alive
// then, whatever the adoption has read before.
func TestWhatAnAdoptionTakesForFreeStaysFree(t *testing.T) {
	for step := 0; ; step++ {
		m := newAdoptingModel(t)
		_, _, err := grants.Enter(m.node, admission.Ask{Owner: grant.Bearer, Mode: grant.Exclusive,
			GPUs: cards - 1})
		m.must(err)
		creator := exec.Command("sleep", "60")
		m.must(creator.Start())
		defer func() { _, _ = creator.Process.Kill(), creator.Wait() }()
		link := filepath.Join(m.node.Host.Proc, strconv.Itoa(creator.Process.Pid))
		m.must(os.Symlink("/proc/"+strconv.Itoa(creator.Process.Pid), link))
		self := m.node.Host.PID
		m.node.Host.PID = creator.Process.Pid
		m.node.Ledger.Host.PID = creator.Process.Pid
		if d := m.node.Admit(m.adopting("old")); !d.Bound {
			t.Fatalf("%s (%s) %s", d.Kind, d.Code, d.Message)
		}
		m.node.Host.PID, m.node.Ledger.Host.PID = self, self
		m.must(os.Remove(link)) // the creator has ended, and left no container

		at := &atStep{step: step, do: func() { // another container of the name is there
			p, err := m.node.Host.Self()
			m.must(err)
			state := filepath.Join(m.dir, "runc", "old")
			m.must(os.MkdirAll(state, 0o700))
			m.must(os.WriteFile(filepath.Join(state, "status"),
				fmt.Appendf(nil, `{"pid":%d,"process-start-time":%d}`, p.PID, p.Start), 0o600))
		}}
		host.Simulated = at
		d := m.node.Admit(m.adopting("new"))
		host.Simulated = nil
		var live []grant.ID
		m.must(m.node.Ledger.View(func(tx *ledger.Tx) error {
			v, err := tx.Whole(m.node.Host.Now())
			for _, g := range v.Grants {
				if g.Mode == grant.Limit && g.Live(v.Now) {
					live = append(live, g.ID)
				}
			}
			return err
		}))
		if len(live) != 1 {
			t.Fatalf("step %d: grants %v have the whole GPU: %s (%s) %s", step, live, d.Kind, d.Code,
				d.Message)
		}
		if !at.done {
			if step < 10 || d.Kind != grant.Admit {
				t.Fatalf("after %d steps: %s (%s) %s", step, d.Kind, d.Code, d.Message)
			}
			return
		}
	}
}

// newAdoptingModel is a node on which containers adopt what a scheduler has allocated to them.
func newAdoptingModel(t *testing.T) *model {
	m := newModel(t)
	// where this test has a cgroup namespace, process 1 says that it is the node's
	m.must(os.Symlink("/proc/1", filepath.Join(m.node.Host.Proc, "1")))
	m.node.Policy.Engine, m.node.Policy.Annotations.Trust = grant.Containerd, grant.Adopt
	return m
}

// adopting is the create of a container to which a scheduler has allocated all memory of a GPU.
func (m *model) adopting(name string) node.Create {
	m.must(os.MkdirAll(filepath.Join(m.dir, "runc"), 0o700))
	c := m.referring(name, grant.Reference{})
	c.Container.Engine, c.Container.RuntimeRoot = grant.Containerd, filepath.Join(m.dir, "runc")
	c.Config = fmt.Appendf(nil, `{"annotations":{"io.kubernetes.cri.container-type":"container",`+
		`"io.kubernetes.cri.sandbox-uid":%q,"io.kubernetes.cri.sandbox-namespace":"n",`+
		`"io.kubernetes.cri.sandbox-name":"p","io.kubernetes.cri.container-name":"c",`+
		`"gpuledger.dev/memory.c":"%dMiB"},"process":{},"linux":{"cgroupsPath":"/no-such-%s",`+
		`"namespaces":[`+
		`{"type":"mount"},{"type":"pid"}],"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`,
		name, card/grant.MiB, name)
	return c
}

// TestAnInventoryThatIsRefreshedMeanwhileIsReadAgain: a container adopts nothing of a GPU that is no
// longer as its create has read it before it had the lock.
func TestAnInventoryThatIsRefreshedMeanwhileIsReadAgain(t *testing.T) {
	for name, c := range map[string]struct {
		sick bool
		code grant.Code
	}{
		"it is the same": {false, ""},
		"its GPUs fail":  {true, grant.NoCapacity},
	} {
		for _, created := range []bool{false, true} {
			m := newAdoptingModel(t)
			create, decide := m.adopting("a"), m.node.Admit
			if created {
				create.Config = m.node.JudgeBeforeCreate(create).Config
				self, err := m.node.Host.Self()
				m.must(err)
				decide = func(c node.Create) node.Decision { return m.node.JudgeCreated(c, self) }
			}
			at := &atStep{do: func() {
				for i := range cards {
					m.sick[i] = c.sick
				}
				m.scan()
			}}
			host.Simulated = at
			d := decide(create)
			host.Simulated = nil
			if !at.done || d.Code != c.code || d.Bound != (c.code == "") {
				t.Errorf("created: %v, %s: %s (%s) %s, bound: %v", created, name, d.Kind, d.Code, d.Message,
					d.Bound)
			}
		}
	}
}
