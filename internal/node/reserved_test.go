package node_test

import (
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
	create.Config = m.node.Foresee(create).Config
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
