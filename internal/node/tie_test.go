package node_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
)

// presents is a container of a pod, as containerd identifies it, with a reference in its
// environment.
func (m *model) presents(name string, identity grant.Identity, reference grant.Reference) node.Create {
	return node.Create{Caller: m.caller(name), Config: fmt.Appendf(nil, `{"process":{"env":["GPULEDGER_GRANT=%s"]},"annotations":{"io.kubernetes.cri.sandbox-uid":%q,"io.kubernetes.cri.sandbox-namespace":%q,
		"io.kubernetes.cri.sandbox-name":%q,"io.kubernetes.cri.container-name":%q},"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`, reference, identity.UID, identity.Namespace, identity.Pod, identity.Container)}
}

func (m *model) entered(ask admission.Ask) (grant.Grant, grant.Reference) {
	m.t.Helper()
	ask.Mode, ask.GPUs, ask.Memory, ask.Source = grant.Timeslice, 1, grant.GiB, "test"
	g, reference, err := grants.Enter(m.node, ask)
	m.must(err)
	return g, reference
}

func TestATieIsJudgedByTheCurrentLedger(t *testing.T) {
	m := newModel(t)
	one, two := grant.Identity{UID: "u1", Namespace: "team", Pod: "one", Container: "main"},
		grant.Identity{UID: "u2", Namespace: "other", Pod: "two", Container: "main"}
	g, reference := m.entered(admission.Ask{Owner: "claim:cc"})
	d := m.node.Admit(m.presents("early", two, reference))
	if !d.Bound {
		t.Fatalf("before it is tied: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
	tied, err := grants.Tie(m.node, g.ID, []grant.Tie{"namespace:team", "pod:u1"})
	if m.must(err); len(tied.BindingsOutsideTies()) != 1 || tied.BindingsOutsideTies()[0].Pod != two {
		t.Errorf("tied under %+v: the excluded containers are %+v", two, tied.BindingsOutsideTies())
	}
	if d := m.node.Admit(m.presents("thief", two, reference)); d.Kind != grant.Refused ||
		d.Code != grant.GrantOwnerMismatch || d.Bound {
		t.Errorf("another pod: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
	if d := m.node.Admit(m.presents("its", one, reference)); !d.Bound {
		t.Errorf("its pod: %s (%s) %s", d.Kind, d.Code, d.Message)
	}
	before, err := os.Stat(m.dir + "/state/grants/" + string(g.ID) + ".json")
	m.must(err)
	again, err := grants.Tie(m.node, g.ID, []grant.Tie{"namespace:team", "pod:u1"})
	m.must(err)
	after, err := os.Stat(m.dir + "/state/grants/" + string(g.ID) + ".json")
	if m.must(err); !os.SameFile(before, after) || !slices.Equal(again.For, tied.For) {
		t.Errorf("the same ties again: the file is another, or they are: %v", again.For)
	}
	var gone *grant.NotFoundError
	if _, err := grants.Tie(m.node, "g-zzzzzzzzzzzz", []grant.Tie{"pod:u1"}); !errors.As(err, &gone) {
		t.Errorf("no such grant: %v", err)
	}
}

// A pod's create may come before the ledger lists the pod under the claim.
func TestACreateWaitsForItsTie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock stands still while the tie is made
		m := newModel(t)
		g, reference := m.entered(admission.Ask{Owner: "claim:cc",
			For: []grant.Tie{"namespace:team", "pod:u1"}})
		second := grant.Identity{UID: "u2", Namespace: "team", Pod: "two", Container: "main"}
		c := m.presents("second", second, reference)
		if d := m.node.Admit(c); d.Code != grant.GrantOwnerMismatch || !d.Late {
			t.Errorf("without a timeout: %s (%s) %s, late: %v", d.Kind, d.Code, d.Message, d.Late)
		}
		c.Timeout = time.Millisecond
		if d := m.node.Admit(c); d.Code != grant.GrantOwnerMismatch {
			t.Errorf("without a tie: %s (%s) %s", d.Kind, d.Code, d.Message)
		}
		tied := make(chan error, 1)
		c.Timeout = time.Hour
		c.OnReading(m.node, sync.OnceFunc(func() { // it reads at each try
			go func() {
				_, err := grants.Tie(m.node, g.ID, []grant.Tie{"namespace:team", "pod:u1", "pod:u2"})
				tied <- err
			}()
		}))
		d := m.node.Admit(c)
		if m.must(<-tied); !d.Bound {
			t.Errorf("tied meanwhile: %s (%s) %s", d.Kind, d.Code, d.Message)
		}
		elsewhere := m.presents("thief", grant.Identity{UID: "u3", Namespace: "other", Pod: "three",
			Container: "main"}, reference)
		elsewhere.Timeout = 1 << 62 // it would hang
		if d := m.node.Admit(elsewhere); d.Code != grant.GrantOwnerMismatch {
			t.Errorf("another namespace: %s (%s) %s", d.Kind, d.Code, d.Message)
		}
	})
}

func TestTiesNeedAnEngineThatProvesPods(t *testing.T) {
	for _, engine := range []grant.Engine{grant.Podman, grant.Docker, grant.NoEngine} {
		m := newModel(t)
		g, _ := m.entered(admission.Ask{Owner: grant.Bearer})
		m.node.Policy.Engine = engine
		_, _, made := grants.Enter(m.node, admission.Ask{Mode: grant.Timeslice, GPUs: 1, Memory: grant.GiB,
			Owner: grant.Bearer, For: []grant.Tie{"namespace:team"}})
		_, tied := grants.Tie(m.node, g.ID, []grant.Tie{"pod:u1"})
		for _, err := range []error{made, tied} {
			var refusal *grant.Refusal
			if !errors.As(err, &refusal) || refusal.Code != grant.GrantOwnerMismatch ||
				!strings.Contains(refusal.Message, fmt.Sprintf(
					"no engine on this node proves which pod a container belongs to (engine = %q)", engine)) {
				t.Errorf("%s: %v", engine, err)
			}
		}
	}
}

// TestEachRefusalIsRecordedWithItsPod, whichever part of the decision refuses.
func TestEachRefusalIsRecordedWithItsPod(t *testing.T) {
	m := newModel(t)
	m.node.Policy.Audit.File = m.dir + "/audit.jsonl"
	pod := grant.Identity{UID: "u1", Namespace: "team", Pod: "one", Container: "main"}
	_, reference := m.entered(admission.Ask{Owner: "claim:cc"})
	if d := m.node.Admit(m.presents("c", pod, reference)); !d.Bound {
		t.Fatalf("%s (%s) %s", d.Kind, d.Code, d.Message)
	}
	for code, create := range map[grant.Code]node.Create{
		grant.GrantInUse:       m.presents("c", pod, reference), // which is being created
		grant.RulesNotEnforced: m.presents("c.slice", pod, reference),
	} {
		d := m.node.Admit(create)
		text, err := os.ReadFile(m.node.Policy.Audit.File)
		m.must(err)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if last := lines[len(lines)-1]; d.Code != code || !strings.Contains(last, `"name":"one"`) ||
			!strings.Contains(last, string(code)) {
			t.Errorf("%s (%s) %s is recorded as %s", d.Kind, d.Code, d.Message, last)
		}
	}
}
