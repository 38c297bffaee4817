package node_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
)

// TestTheCgroupOfAGrantIsNobodyElses: no other container is created in it, below it, or above it where its device rules would count.
func TestTheCgroupOfAGrantIsNobodyElses(t *testing.T) {
	m := newModel(t)
	m.must(os.MkdirAll(m.dir+"/none", 0o755))
	_, reference := m.entered(admission.Ask{Owner: "claim:cc"})
	in := func(name, path, env string) node.Create {
		return node.Create{Caller: m.caller(name), Config: fmt.Appendf(nil, `{"process":{"env":[%q]},"linux":{"cgroupsPath":%q,"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`, env, path)}
	}
	with := "GPULEDGER_GRANT=" + reference.String()
	for _, c := range []struct {
		name, path, env string
		crowded         bool
	}{
		{"before", "/gpuledger-test/pods/a", "A=1", false},
		{"first", "/gpuledger-test/pods/a", with, false},
		{"beside", "/gpuledger-test/pods/b", "A=1", false},
		{"beginning-alike", "/gpuledger-test/pods/ab", "A=1", false},
		{"in", "/gpuledger-test/pods/a", "A=1", true},
		{"a", "/gpuledger-test/pods/a", "A=1", true},
		{"below", "/gpuledger-test/pods/a/below", "A=1", true},
		{"above", "/gpuledger-test/pods", "A=1", true},
		{"pods", "/gpuledger-test/pods", "A=1", false}, // by its name it is the engine's for this container alone
		{"cgroupless", "", "A=1", false},
		{"with-the-grant", "/gpuledger-test/pods/a", with, true},
		{"with-the-grant-beside", "/gpuledger-test/pods/c", with, false},
		{"beside-the-second", "/gpuledger-test/pods/c", "A=1", true},
	} {
		create := in(c.name, c.path, c.env)
		for way, decide := range map[string]func(node.Create) node.Decision{"Explain": m.node.Explain, "Admit": m.node.Admit} {
			d := decide(create)
			if way == "Explain" && c.env == with {
				continue // who only asks binds nothing
			}
			if crowded := d.Kind == grant.Refused; crowded != c.crowded || crowded && d.Code != grant.InjectionImpossible {
				t.Errorf("%s in %s, by %s: %s (%s) %s", c.name, c.path, way, d.Kind, d.Code, d.Message)
			}
		}
	}
	again := in("first", "/gpuledger-test/pods/a", "A=1")
	again.Container.RuntimeRoot = m.dir + "/guess"
	if d := m.node.Explain(again); d.Kind != grant.Pass {
		t.Errorf("who only asks, and knows no root: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
	if d := m.node.Admit(again); d.Code != grant.InjectionImpossible {
		t.Errorf("a container of the id in another root: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
}
