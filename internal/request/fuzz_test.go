package request

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	strict "github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// A spec is a tenant's: whatever it holds, reading it ends with an answer. What we take,
// encoding/json takes too, and reads the same environment: a runtime in Go sees what we saw. What
// is read token by token is what the strict library reads by the fields' tags.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]},"annotations":{"A":"b"},` +
		`"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`))
	f.Add([]byte(`{"Process":{},"process":null}`))
	f.Add([]byte(`{"a\\":{"sysctl" : {"Linux":{"Linux":"\":"}},"annotations":"x","Linux\\\\":[]},` +
		`"unified":[{"Linux":1}],"Linux":1}`))
	f.Add([]byte(`{"linux":[[{"resources":{"CPU":{"Path":1},"devices":[{"Type":"c"}]}}]],` +
		`"mounts":{"Type":""}}`))
	f.Add([]byte(`{"proce\u017fs":[{"linux":{"unified":{"x":1,"x":2}}}]} x`))
	f.Fuzz(func(t *testing.T, config []byte) {
		spec, err := Parse(config)
		checked := checkNames(config, specFields)
		if wrong, valid := walkNames(config); valid && ((checked == nil) != (len(wrong) == 0) ||
			checked != nil && !slices.Contains(wrong, checked.Error())) {
			t.Errorf("names: %v, by the library %q", checked, wrong)
		}
		if want := (Spec{}); checked == nil && checkWords(config) == nil {
			byTags := strict.Unmarshal(config, &want)
			if byTags == nil && want.Linux != nil && want.Linux.Resources != nil {
				byTags = checkRules(want.Linux.Resources.Devices)
			}
			if (err == nil) != (byTags == nil) || err == nil && !reflect.DeepEqual(spec, want) {
				t.Errorf("read %+v (%v), by the library %+v (%v)", spec, err, want, byTags)
			}
		}
		if _, err := ParseUpdate(config); err != nil {
			_ = err.Error()
		}
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		var other Spec
		if err := json.Unmarshal(config, &other); err != nil {
			var syntax *json.SyntaxError
			if errors.As(err, &syntax) {
				t.Fatalf("encoding/json takes it for no JSON: %v", err)
			}
			return
		}
		ours, theirs := normal(spec).Process.Env, normal(other).Process.Env
		if len(ours) != len(theirs) {
			t.Errorf("environment %q, by encoding/json %q", ours, theirs)
		}
	})
}

// walkNames is checkNames by the library's own tree of the document, whose members come in no
// order.
func walkNames(config []byte) (wrong []string, valid bool) {
	var tree any
	if strict.Unmarshal(config, &tree) != nil {
		return nil, false
	}
	return wrongNames(tree, specFields), true
}

func wrongNames(value any, in []field) (wrong []string) {
	if list, is := value.([]any); is {
		for _, element := range list {
			wrong = append(wrong, wrongNames(element, in)...)
		}
	}
	object, _ := value.(map[string]any)
	for name, member := range object {
		for _, f := range in {
			switch {
			case name == f.name && f.in != nil:
				wrong = append(wrong, wrongNames(member, f.in)...)
			case name != f.name && strings.EqualFold(name, f.name):
				wrong = append(wrong, fmt.Sprintf("%s is spelt \"%s\" there; runtimes disagree on "+
					"whether it counts", f.name, grant.Printable(name)))
			}
		}
	}
	return wrong
}

func FuzzFind(f *testing.F) {
	f.Add([]byte(`{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all","GPULEDGER_GRANT=g-abcdefghijkl",`+
		`"ALIYUN_COM_GPU_MEM_CONTAINER=4"],"capabilities":{"bounding":["CAP_SYS_ADMIN"]}},`+
		`"mounts":[{"destination":"/x","source":"/dev","type":"bind"},`+
		`{"destination":"/var/run/nvidia-container-devices/0","source":"/dev/null","options":["bind"]}],`+
		`"annotations":{"ALIYUN_COM_GPU_MEM_IDX":"0","gpuledger.dev/gpus":"0",`+
		`"scheduler.framework.gpushare.allocation":"{\"c1\":{\"0\":1}}"},`+
		`"linux":{"namespaces":[{"type":"user"}],"devices":[{"path":"/dev/null","type":"c","major":195}],`+
		`"resources":{"devices":[{"allow":true}]}}}`), uint8(0))
	f.Add([]byte(`{"linux":{"resources":{"devices":[{"allow":true,"type":"c","major":195,"access":"rw"},`+
		`{"type":"c","access":"rw"}]}}}`), uint8(1))
	f.Fuzz(func(t *testing.T, config []byte, engine uint8) {
		spec, err := Parse(config)
		if err != nil {
			return
		}
		s := newScene(t)
		s.spec = spec
		s.caller.Container.Engine = []grant.Engine{grant.Containerd, grant.CRIO, grant.Podman, grant.Docker,
			grant.NoEngine}[engine%5]
		r, err := Find(s.spec, s.caller, s.node)
		if err != nil {
			return
		}
		for _, h := range r.Hits {
			if h.Code.Rank() < 0 || h.Vector == "" {
				t.Errorf("a hit without a code or a vector: %+v", h)
			}
		}
		if open := anyOpens(normal(spec).Linux.Resources.Devices); open && len(r.Hits) == 0 {
			t.Errorf("a GPU is open, and nothing was found")
		}
	})
}
