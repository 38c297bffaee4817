package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// fullDirectory is a disk that takes no new file in a directory.
type fullDirectory string

func (d fullDirectory) Random() (r [16]byte)   { return r }
func (d fullDirectory) After(host.Step, error) {}
func (d fullDirectory) Before(s host.Step) error {
	if s.Kind == host.Creates && filepath.Dir(s.Path) == string(d) {
		return unix.ENOSPC
	}
	return nil
}

// TestAReservationStaysUntilItsContainerIsBound: a container may run already whose binding cannot
// be written, and its reservation is all that holds its grant.
func TestAReservationStaysUntilItsContainerIsBound(t *testing.T) {
	m := newModel(t)
	self, err := m.node.Host.Self()
	m.must(err)
	g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	create := m.referring("c", reference)
	create.Config = m.node.JudgeBeforeCreate(create).Config
	reserved := create
	reserved.Reserve = true
	if d := m.node.JudgeCreated(reserved, self); !d.Bound {
		t.Fatalf("%s (%s) %s", d.Kind, d.Code, d.Message)
	}
	running := create
	running.Running = true
	host.Simulated = fullDirectory(m.node.Policy.RunDir + "/bindings")
	d := m.node.JudgeCreated(running, self)
	host.Simulated = nil
	if users := m.users(g.ID); len(users) != 1 || users[0] != "c" {
		t.Errorf("%s (%s) %s: the grant is used by %q, want c", d.Kind, d.Code, d.Message, users)
	}
	if d := m.node.JudgeCreated(running, self); !d.Bound || len(m.users(g.ID)) != 1 {
		t.Errorf("%s (%s) %s: the grant is used by %q, want c alone", d.Kind, d.Code, d.Message,
			m.users(g.ID))
	}
}

// lockedOnce lets the ledger be locked once.
type lockedOnce struct{ tries int }

func (l *lockedOnce) Random() (r [16]byte)   { return r }
func (l *lockedOnce) After(host.Step, error) {}
func (l *lockedOnce) Before(s host.Step) error {
	if s.Kind != host.TakesLock {
		return nil
	}
	if l.tries++; l.tries > 1 {
		return unix.ETIMEDOUT
	}
	return nil
}

// TestARefusedReservationThatStaysIsBound: NRI's plugin abandons it later.
func TestARefusedReservationThatStaysIsBound(t *testing.T) {
	m := newModel(t)
	g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	create := m.referring("c", reference)
	create.Reserve = true
	// what another process announces cannot be read
	parent := fmt.Sprint(os.Getppid())
	m.must(os.Symlink("/proc/"+parent, filepath.Join(m.dir, "proc", parent)))
	namespace, err := m.node.Host.PIDNamespace()
	m.must(err)
	other, _, err := m.node.Host.Process(os.Getppid())
	m.must(err)
	announced := fmt.Sprintf("%s/run/creates/%d-%d-%d", m.dir, namespace, other.PID, other.Start)
	m.must(os.MkdirAll(announced, 0o700))
	host.Simulated = &lockedOnce{}
	d := m.node.Admit(create)
	host.Simulated = nil
	if d.Kind != grant.Refused || !d.Bound || len(m.users(g.ID)) != 1 {
		t.Errorf("%s (%s) %s: bound %v, and the grant is used by %q; want a refusal that is bound", d.Kind,
			d.Code, d.Message, d.Bound, m.users(g.ID))
	}
	if d := m.node.Admit(create); d.Kind != grant.Refused || d.Bound || len(m.users(g.ID)) != 0 {
		t.Errorf("%s (%s) %s: bound %v, and the grant is used by %q; want a refusal that is not", d.Kind,
			d.Code, d.Message, d.Bound, m.users(g.ID))
	}
}
