package node_test

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/edit"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// object is a part of a config.json.
type object = map[string]any

// wrongly puts a mistake into edit.OCI: it changes the edited config.json once more.
func wrongly(mistake func(spec, given object)) func([]byte, grant.Verdict) ([]byte, error) {
	return func(config []byte, v grant.Verdict) ([]byte, error) {
		edited, err := edit.OCI(config, v)
		var spec, given object
		if err == nil {
			err = json.Unmarshal(edited, &spec)
		}
		if err == nil {
			err = json.Unmarshal(config, &given)
		}
		if err != nil {
			return nil, err
		}
		mistake(spec, given)
		return json.Marshal(spec)
	}
}

func adds(spec object, value any, path ...string) {
	for _, name := range path[:len(path)-1] {
		if spec[name] == nil {
			spec[name] = object{}
		}
		spec = spec[name].(object)
	}
	last := path[len(path)-1]
	list, _ := spec[last].([]any)
	spec[last] = append(list, value)
}

// TestAMistakeInTheEditsIsRefused: the edited spec is judged again. Whatever an edit leaves or adds
// by mistake, the container does not start with it, on any path to a verdict.
func TestAMistakeInTheEditsIsRefused(t *testing.T) {
	const closed = `"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}`
	granted := func(reference grant.Reference) string {
		return fmt.Sprintf(`{"process":{"env":["GPULEDGER_GRANT=%s"]},%s}`, reference, closed)
	}
	all := func(grant.Reference) string {
		return `{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},` + closed + `}`
	}
	privileged := func(grant.Reference) string {
		return `{"process":{"capabilities":{"bounding":["CAP_SYS_ADMIN"],"effective":["CAP_SYS_ADMIN"],` +
			`"permitted":["CAP_SYS_ADMIN"]}},` +
			`"linux":{"devices":[{"path":"/dev/nvidia0","type":"c","major":195,"minor":0}],` +
			`"resources":{"devices":[{"allow":true,"access":"rwm"}]}}}`
	}
	asGiven := func(parts ...string) func(spec, given object) {
		return func(spec, given object) {
			for _, name := range parts {
				spec[name] = given[name]
			}
		}
	}
	for name, c := range map[string]struct {
		config  func(grant.Reference) string
		mistake func(spec, given object)
	}{
		"a rule for another GPU": {granted, func(spec, _ object) {
			adds(spec, object{"allow": true, "type": "c", "major": 195, "minor": 1, "access": "rw"}, "linux",
				"resources", "devices")
		}},
		"a rule for every GPU": {granted, func(spec, _ object) {
			adds(spec, object{"allow": true, "type": "c", "major": 195, "access": "rwm"}, "linux",
				"resources", "devices")
		}},
		"no device rules": {granted, func(spec, _ object) { delete(spec["linux"].(object), "resources") }},
		"another GPU's node": {granted, func(spec, _ object) {
			adds(spec, object{"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1},
				"linux", "devices")
		}},
		"a wish for all GPUs": {granted, func(spec, _ object) {
			adds(spec, "NVIDIA_VISIBLE_DEVICES=all", "process", "env")
		}},
		"a wish for another": {granted, func(spec, _ object) {
			adds(spec, "NVIDIA_VISIBLE_DEVICES="+uuid(1), "process", "env")
		}},
		"an injector's hook": {granted, func(spec, _ object) {
			adds(spec, object{"path": "/usr/bin/nvidia-container-runtime-hook"}, "hooks", "prestart")
		}},
		"the reference is off":     {granted, func(spec, _ object) { spec["process"] = object{} }},
		"hidden: the wish stays":   {all, asGiven("process")},
		"stripped: the node stays": {privileged, asGiven("linux")},
		"stripped: the rules stay": {privileged, func(spec, given object) {
			spec["linux"].(object)["resources"] = given["linux"].(object)["resources"]
		}},
		"stripped: the rules are left out": {privileged, func(spec, _ object) {
			delete(spec["linux"].(object), "resources")
		}},
	} {
		m := newModel(t)
		m.must(os.Mkdir(m.dir+"/none", 0o755))
		m.node.Policy.Rules.Ungranted, m.node.Policy.Rules.Privileged = grant.Hide, grant.Strip
		g, reference, err := grants.Enter(m.node, admission.Ask{
			Mode: grant.Timeslice, Owner: grant.Bearer, GPUs: 1, Memory: grant.GiB, Source: "test"})
		m.must(err)
		create := node.Create{Caller: m.caller("c"), Config: []byte(c.config(reference))}
		if d := m.node.Explain(create); d.Kind == grant.Refused || d.Config == nil {
			t.Fatalf("%s: without the mistake: %s (%s) %s", name, d.Kind, d.Code, d.Message)
		}
		create.Edit = wrongly(c.mistake)
		for way, verdict := range map[string]func(node.Create) node.Decision{
			"Admit": m.node.Admit, "JudgeBeforeCreate": m.node.JudgeBeforeCreate, "Explain": m.node.Explain,
		} {
			if d := verdict(create); d.Kind != grant.Refused || d.Code != grant.Internal || d.Config != nil ||
				d.Bound || d.NotEnforced != "" {
				t.Errorf("%s, by %s: %s (%s) %s; want a refusal (internal)", name, way,
					d.Kind, d.Code, d.Message)
			}
		}
		m.must(m.node.Ledger.View(func(tx *ledger.Tx) error {
			now, err := tx.Get(g.ID)
			if len(now.Bindings) > 0 {
				t.Errorf("%s: the grant is bound: %v", name, now.Bindings)
			}
			return err
		}))
	}
}

// TestAMistakeThatALedgerChangeShowsIsRefused: what the edited spec still has is also judged by the
// grants at the time when one is bound. An edit leaves by mistake a request for 1 GiB. The grant
// has that much when the edit is judged, and less when the grant is bound. The edits are the same,
// because time slices enforce no memory limit.
func TestAMistakeThatALedgerChangeShowsIsRefused(t *testing.T) {
	m := newModel(t)
	m.must(os.Mkdir(m.dir+"/none", 0o755))
	g, reference := m.entered(admission.Ask{Owner: grant.Bearer})
	create := node.Create{Caller: m.caller("c"), Config: fmt.Appendf(nil,
		`{"process":{"env":["GPULEDGER_GRANT=%s"]},"linux":{"resources":{"devices":[{"allow":false,`+
			`"access":"rwm"}]}}}`, reference)}
	wrong := wrongly(func(spec, _ object) { spec["annotations"] = object{"gpuledger.dev/memory": "1GiB"} })
	edits := 0
	create.Edit = func(config []byte, v grant.Verdict) ([]byte, error) {
		if edits++; edits == 1 {
			memory := 2 * grant.GiB
			if _, err := grants.Update(m.node, g.ID, grants.Change{Memory: &memory}); err != nil {
				return nil, err
			}
		}
		return wrong(config, v)
	}
	if d := m.node.Admit(create); d.Kind != grant.Refused || d.Code != grant.Internal || d.Bound ||
		d.Config != nil || edits != 2 {
		t.Errorf("after %d edits: %s (%s) %s, bound: %v; want it refused (internal) after 2", edits, d.Kind,
			d.Code, d.Message, d.Bound)
	}
	m.must(m.node.Ledger.View(func(tx *ledger.Tx) error {
		now, err := tx.Get(g.ID)
		if len(now.Bindings) > 0 {
			t.Errorf("the grant is bound: %v", now.Bindings)
		}
		return err
	}))
}
