package node_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
)

// TestAGrantsCgroupIsNotShared: no other container is created in it, below it, or above it, where
// its device rules would apply.
func TestAGrantsCgroupIsNotShared(t *testing.T) {
	m := newModel(t)
	m.must(os.MkdirAll(m.dir+"/none", 0o755))
	_, reference := m.entered(admission.Ask{Owner: "claim:cc"})
	in := func(name, path, env string) node.Create {
		return node.Create{Caller: m.caller(name), Config: fmt.Appendf(nil,
			`{"process":{"env":[%q]},"linux":{"cgroupsPath":%q,"resources":{"devices":[{"allow":false,`+
				`"access":"rwm"}]}}}`, env, path)}
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
		{"below", "/gpuledger-test/pods/a/not-after-it", "A=1", true},
		{"named-below", "/gpuledger-test/pods/a/named-below", "A=1", false}, // "a" is not named after its container, and may be a parent
		{"above", "/gpuledger-test/pods", "A=1", true},
		{"pods", "/gpuledger-test/pods", "A=1", false}, // by its name it is the engine's for this container alone
		{"cgroupless", "", "A=1", false},
		{"with-the-grant", "/gpuledger-test/pods/a", with, true},
		{"with-the-grant-beside", "/gpuledger-test/pods/c", with, false},
		{"beside-the-second", "/gpuledger-test/pods/c", "A=1", true},
		{"own", "/gpuledger-test/own", with, false},
		{"below-own", "/gpuledger-test/own/below-own", "A=1", true},
		{"guess", "", with, false},
		{"in-guess", "/guess", "A=1", true},
		{"below-guess", "/guess/below-guess", "A=1", false},
		{"unit", "gpuledger.slice:docker:unit", with, false},
		{"its-unit", "gpuledger.slice:docker:unit", "A=1", true},
		{"its-unit-elsewhere", "other.slice:docker:unit", "A=1", true},
		{"its-unit-in-the-root", "-.slice:docker:unit", "A=1", true},
		{"its-unit-by-crun", "other.slice:docker-unit", "A=1", true},
		{"its-unit-with-the-grant", "other.slice:docker:unit", with, true},
		{"its-units-directory", "/gpuledger.slice/docker-unit.scope/x", "A=1", true},
		{"beside-its-unit", "gpuledger.slice:docker:unit2", "A=1", false},
		{"unit-of-another-prefix", "gpuledger.slice:podman:unit", "A=1", false},
		{"docker", "/docker", with, true}, // engines' parents get no grant
		{"s", "gpuledger.slice:x:s.slice", with, true},
		{"root", "/", with, true},
		{"of-docker", "/docker/of-docker", "A=1", false},
		{"of-the-system", "system.slice:docker:of-the-system", "A=1", false},
		{"c", "../../gpuledger-test/pods/c", "A=1", true},
	} {
		create := in(c.name, c.path, c.env)
		for _, way := range []string{"Explain", "Admit"} { // Explain binds nothing, so it is first
			decide := m.node.Admit
			if way == "Explain" {
				decide = m.node.Explain
			}
			d := decide(create)
			if crowded := d.Kind == grant.Refused; crowded != c.crowded ||
				crowded && d.Code != grant.InjectionImpossible {
				t.Errorf("%s in %s, by %s: %s (%s) %s", c.name, c.path, way, d.Kind, d.Code, d.Message)
			}
		}
	}
	again := in("first", "/gpuledger-test/pods/a", "A=1")
	again.Container.RuntimeRoot = m.dir + "/guess"
	if d := m.node.Explain(again); d.Kind != grant.Pass {
		t.Errorf("Explain, without a known root: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
	if d := m.node.Admit(again); d.Code != grant.InjectionImpossible {
		t.Errorf("a container of the id in another root: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
}

// TestNoContainerIsASlice: systemd puts no processes into a slice, and runc up to 1.1.5 then leaves
// the container in its own cgroup.
func TestNoContainerIsASlice(t *testing.T) {
	m := newModel(t)
	_, reference := m.entered(admission.Ask{Owner: "claim:cc"})
	for _, env := range []string{"A=1", "GPULEDGER_GRANT=" + reference.String()} {
		for name, path := range map[string]string{"system.slice": "", "a": "system.slice:x:user.slice",
			"b": ":x:-.slice", "c.slice": "a.slice:x:c.slice"} {
			create := node.Create{Caller: m.caller(name), Config: fmt.Appendf(nil,
				`{"process":{"env":[%q]},"linux":{"cgroupsPath":%q,"resources":{"devices":[{"allow":false,`+
					`"access":"rwm"}]}}}`, env, path)}
			said := m.node.Explain(create)
			d := m.node.Admit(create)
			if said.Kind != d.Kind || said.Code != d.Code || said.Message != d.Message {
				t.Errorf("%s in %q with %s: Explain says %s (%s) %s, and Admit %s (%s) %s", name, path, env,
					said.Kind, said.Code, said.Message, d.Kind, d.Code, d.Message)
			}
			if want := grant.RulesNotEnforced; d.Code != want &&
				(path == "" || env == "A=1" || d.Code != grant.InjectionImpossible) {
				t.Errorf("%s in %q with %s: %s (%s) %s", name, path, env, d.Kind, d.Code, d.Message)
			}
		}
	}
}
