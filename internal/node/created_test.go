package node_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// referring is the create of a container with a reference in its environment.
func (m *model) referring(name string, reference grant.Reference) node.Create {
	m.must(os.MkdirAll(m.dir+"/none", 0o755))
	return node.Create{Caller: m.caller(name), Config: fmt.Appendf(nil,
		`{"process":{"env":["GPULEDGER_GRANT=%s"]},"linux":{"resources":{"devices":[{"allow":false,`+
			`"access":"rwm"}]}}}`, reference)}
}

// created is a bound container as gpuledgerd finds it: with the edited spec, and a guess of the
// runtime's root.
func (m *model) created(c node.Create) node.Create {
	m.t.Helper()
	d := m.node.Admit(c)
	if !d.Bound {
		m.t.Fatalf("%s (%s) %s", d.Kind, d.Code, d.Message)
	}
	c.Config, c.AnyRoot, c.Container.RuntimeRoot = d.Config, true, m.dir+"/guess"
	return c
}

// TestACreatedContainerKeepsItsGrant even if the grant's time is over: JudgeCreated finds it by its
// id, whatever the runtime's root. A create of the same id, and a container that has nothing of the
// grant yet, are refused.
func TestACreatedContainerKeepsItsGrant(t *testing.T) {
	for name, end := range map[string]func(m *model, id grant.ID){
		"released": func(m *model, id grant.ID) {
			_, err := grants.Release(m.node, id, false)
			m.must(err)
		},
		"expired": func(m *model, id grant.ID) {
			ttl := time.Nanosecond
			_, err := grants.Update(m.node, id, grants.Change{TTL: &ttl})
			m.must(err)
		},
	} {
		m := newModel(t)
		self, err := m.node.Host.Self()
		m.must(err)
		g, reference := m.entered(admission.Ask{Owner: "claim:cc"})
		c := m.referring("c", reference)
		its := m.created(c)
		end(m, g.ID)
		if d := m.node.JudgeCreated(its, self); d.Kind != grant.Admit || d.Bound {
			t.Errorf("%s, its own container: %s (%s) %s, bound: %v", name, d.Kind, d.Code, d.Message, d.Bound)
		}
		other := its
		other.Container.ID = "other"
		known := its
		known.AnyRoot = false
		for caller, d := range map[string]node.Decision{"another container": m.node.JudgeCreated(other, self),
			"one of another root": m.node.JudgeCreated(known, self),
			"a create of its id":  m.node.Explain(c)} {
			if d.Kind != grant.Refused || d.Code != grant.GrantExpired {
				t.Errorf("%s, %s: %s (%s) %s", name, caller, d.Kind, d.Code, d.Message)
			}
		}
	}
}

// TestAReservationEndsWithTheCreate: a reservation may assume another runtime root of the
// container, so its own create does not overwrite it.
func TestAReservationEndsWithTheCreate(t *testing.T) {
	m := newModel(t)
	self, err := m.node.Host.Self()
	m.must(err)
	g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	create := m.referring("c", reference)
	bound := func(when string, want ...bool) {
		t.Helper()
		m.must(m.node.Ledger.View(func(tx *ledger.Tx) error {
			now, err := tx.Get(g.ID)
			var reserved []bool
			for _, b := range now.Bindings {
				reserved = append(reserved, b.Reserved)
			}
			if !slices.Equal(reserved, want) {
				t.Errorf("%s: bindings %+v, want so many, reserved: %v", when, now.Bindings, want)
			}
			return err
		}))
	}
	reserve := create
	reserve.Config = m.node.JudgeBeforeCreate(create).Config
	reserve.Container.RuntimeRoot, reserve.AnyRoot, reserve.Reserve = m.dir+"/guess", true, true
	if d := m.node.JudgeCreated(reserve, self); !d.Bound {
		t.Fatalf("reserved: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
	bound("reserved", true)
	if d := m.node.Admit(create); !d.Bound {
		t.Fatalf("created: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
	bound("created", false)
	m.must(m.node.Abandon("c"))
	bound("the create is over", false)
	m.must(m.node.Unbind(create.Container))
	if d := m.node.JudgeCreated(reserve, self); !d.Bound {
		t.Fatalf("reserved again: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
	m.must(m.node.Abandon("other"))
	bound("another's is over", true)
	m.must(m.node.Abandon("c"))
	bound("abandoned")
}
