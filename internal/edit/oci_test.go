package edit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// A spec with unknown fields, in an odd order and with odd white space: another program may need
// all of it.
const spec = `{ "zNew" : { "b":1 , "a":[ 1,2 ] }, "ociVersion":"1.3.0",
 "process":{"terminal":false, "env":[ "PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all","A=\u00e4", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES", "X" ],"cwd":"/"},
 "mounts":[{"destination":"/m","source":"/s","options":["rbind"],"new":1},{"destination":"/keep"}],
 "hooks":{"prestart":[{"path":"/usr/bin/nvidia-ctk"},{"path":"/usr/bin/other","args":["x"]}],"newStage":[{"path":"/usr/bin/nvidia-ctk"}],"poststop":[{"path":"/usr/bin/nvidia-ctk"}]},
 "annotations":{"z":"1","cdi.k8s.io/x":"y","a":"2"},
 "linux":{"new":true,"devices":[{"path":"/dev/nvidia1","type":"c","major":195,"minor":1,"extra":{}},{"path":"/dev/fuse","type":"c","major":10,"minor":229}],
  "resources":{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":195,"minor":0,"access":"r"},{"allow":true,"type":"c","major":195,"minor":254,"access":"rwm"},{"allow":false,"type":"c","major":195,"minor":254,"access":"m"}],"unified":{"k":"v"}}}}`

func gpuEdits() cdispec.ContainerEdits {
	mode := os.FileMode(0o666)
	return cdispec.ContainerEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=GPU-0"},
		DeviceNodes: []*cdispec.DeviceNode{{Path: "/dev/nvidia0", HostPath: "/dev/nvidia0", Type: "c",
			Major: 195, Minor: 0, FileMode: &mode, Permissions: "rw"}}}
}

func removal(kind grant.RemovalKind, name string) []grant.Removal {
	return []grant.Removal{{Kind: kind, Name: name}}
}

func TestOCI(t *testing.T) {
	allow := []grant.DeviceRule{{Allow: true, Type: 'c', Major: 195, Minor: 0, Access: "rw"}}
	for _, c := range []struct {
		name    string
		verdict grant.Verdict
		old     []string // what each edit takes out ...
		new     []string // ... and what stands in its place
	}{
		{"nothing to do", grant.Verdict{Kind: grant.Pass}, nil, nil},
		{"removals of what is not there", grant.Verdict{
			Removed: append(removal(grant.RemoveEnv, "NONE"), removal(grant.RemoveMount, "/none")...)}, nil,
			nil},
		{"env set: every other occurrence goes", grant.Verdict{
			Edits: cdispec.ContainerEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=GPU-0"}}},
			[]string{`"env":[ "PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all","A=\u00e4", ` +
				`"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES", "X" ]`},
			[]string{`"env":["PATH=/bin","A=\u00e4","X","NVIDIA_VISIBLE_DEVICES=GPU-0"]`}},
		{"env removed", grant.Verdict{Removed: removal(grant.RemoveEnv, "X")},
			[]string{`"env":[ "PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all","A=\u00e4", ` +
				`"NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES", "X" ]`},
			[]string{`"env":["PATH=/bin","NVIDIA_VISIBLE_DEVICES=all","A=\u00e4",` +
				`"NVIDIA_VISIBLE_DEVICES=0","NVIDIA_VISIBLE_DEVICES"]`}},
		{"a mount removed", grant.Verdict{Removed: removal(grant.RemoveMount, "/m")},
			[]string{`[{"destination":"/m","source":"/s","options":["rbind"],"new":1},` +
				`{"destination":"/keep"}]`}, []string{`[{"destination":"/keep"}]`}},
		{"a mount set", grant.Verdict{Edits: cdispec.ContainerEdits{
			Mounts: []*cdispec.Mount{{HostPath: "/h", ContainerPath: "/m",
				Options: []string{"ro", "bind"}}}}},
			[]string{`[{"destination":"/m","source":"/s","options":["rbind"],"new":1},` +
				`{"destination":"/keep"}]`},
			[]string{`[{"destination":"/keep"},{"destination":"/m","type":"bind","source":"/h",` +
				`"options":["ro","bind"]}]`}},
		{"a hook removed, from every stage", grant.Verdict{
			Removed: removal(grant.RemoveHook, "/usr/bin/nvidia-ctk")},
			[]string{`{"prestart":[{"path":"/usr/bin/nvidia-ctk"},{"path":"/usr/bin/other","args":["x"]}],` +
				`"newStage":[{"path":"/usr/bin/nvidia-ctk"}],"poststop":[{"path":"/usr/bin/nvidia-ctk"}]}`},
			[]string{`{"prestart":[{"path":"/usr/bin/other","args":["x"]}],"newStage":[],"poststop":[]}`}},
		{"a hook set, behind others", grant.Verdict{Edits: cdispec.ContainerEdits{
			Hooks: []*cdispec.Hook{{HookName: "prestart", Path: "/h", Args: []string{"h", "limit"},
				Env: []string{"A=1"}}}}},
			[]string{`{"path":"/usr/bin/other","args":["x"]}]`},
			[]string{`{"path":"/usr/bin/other","args":["x"]},{"path":"/h","args":["h","limit"],` +
				`"env":["A=1"]}]`}},
		{"a hook set beside one with other arguments", grant.Verdict{
			Edits: cdispec.ContainerEdits{Hooks: []*cdispec.Hook{
				{HookName: "prestart", Path: "/usr/bin/other", Args: []string{"y"}}}}},
			[]string{`{"path":"/usr/bin/other","args":["x"]}]`},
			[]string{`{"path":"/usr/bin/other","args":["x"]},{"path":"/usr/bin/other","args":["y"]}]`}},
		{"a hook set beside another with its arguments", grant.Verdict{
			Edits: cdispec.ContainerEdits{Hooks: []*cdispec.Hook{
				{HookName: "prestart", Path: "/h", Args: []string{"x"}}}}},
			[]string{`{"path":"/usr/bin/other","args":["x"]}]`},
			[]string{`{"path":"/usr/bin/other","args":["x"]},{"path":"/h","args":["x"]}]`}},
		{"a hook in a stage without other hooks", grant.Verdict{
			Edits: cdispec.ContainerEdits{Hooks: []*cdispec.Hook{
				{HookName: "createRuntime", Path: "/usr/bin/other"}}}},
			[]string{`"poststop":[{"path":"/usr/bin/nvidia-ctk"}]}`},
			[]string{`"poststop":[{"path":"/usr/bin/nvidia-ctk"}],` +
				`"createRuntime":[{"path":"/usr/bin/other"}]}`}},
		{"two hooks set in a stage of their own", grant.Verdict{
			Edits: cdispec.ContainerEdits{Hooks: []*cdispec.Hook{
				{HookName: "createRuntime", Path: "/a"}, {HookName: "createRuntime", Path: "/b"}}}},
			[]string{`"poststop":[{"path":"/usr/bin/nvidia-ctk"}]}`},
			[]string{`"poststop":[{"path":"/usr/bin/nvidia-ctk"}],"createRuntime":[{"path":"/a"},` +
				`{"path":"/b"}]}`}},
		{"an annotation removed", grant.Verdict{Removed: removal(grant.RemoveAnnotation, "cdi.k8s.io/x")},
			[]string{`"cdi.k8s.io/x":"y",`}, []string{``}},
		{"a device removed", grant.Verdict{Removed: removal(grant.RemoveDevice, "/dev/nvidia1")},
			[]string{`{"path":"/dev/nvidia1","type":"c","major":195,"minor":1,"extra":{}},`}, []string{``}},
		{"an allow removed, its deny kept", grant.Verdict{Removed: removal(grant.RemoveRule, "c 195:254")},
			[]string{`{"allow":true,"type":"c","major":195,"minor":254,"access":"rwm"},`}, []string{``}},
		{"a new rule replaces an equal one", grant.Verdict{Rules: allow},
			[]string{`{"allow":true,"type":"c","major":195,"minor":0,"access":"r"},`,
				`"minor":254,"access":"m"}]`},
			[]string{``, `"minor":254,"access":"m"},{"allow":true,"type":"c","major":195,"minor":0,` +
				`"access":"rw"}]`}},
		{"a rule set, the deny of its device kept", grant.Verdict{
			Rules: []grant.DeviceRule{{Allow: true, Type: 'c', Major: 195, Minor: 254, Access: "rw"}}},
			[]string{`{"allow":true,"type":"c","major":195,"minor":254,"access":"rwm"},`,
				`"minor":254,"access":"m"}]`},
			[]string{``, `"minor":254,"access":"m"},{"allow":true,"type":"c","major":195,"minor":254,` +
				`"access":"rw"}]`}},
		{"rules that stand alone", grant.Verdict{Narrow: true, Rules: allow},
			[]string{`{"allow":true,"type":"c","major":195,"minor":0,"access":"r"},{"allow":true,` +
				`"type":"c","major":195,"minor":254,"access":"rwm"},{"allow":false,"type":"c","major":195,` +
				`"minor":254,"access":"m"}]`},
			[]string{`{"allow":true,"type":"c","major":195,"minor":0,"access":"rw"}]`}},
		{"a node set", grant.Verdict{Edits: cdispec.ContainerEdits{DeviceNodes: gpuEdits().DeviceNodes}},
			[]string{`"minor":229}]`},
			[]string{`"minor":229},{"path":"/dev/nvidia0","type":"c","major":195,"minor":0,"fileMode":438,` +
				`"uid":0,"gid":0}]`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := OCI([]byte(spec), c.verdict)
			if err != nil {
				t.Fatal(err)
			}
			want := spec
			for i, old := range c.old {
				if strings.Count(want, old) != 1 {
					t.Fatalf("the row is wrong about %s", old)
				}
				want = strings.Replace(want, old, c.new[i], 1)
			}
			if len(c.old) == 0 && string(got) != spec {
				t.Errorf("a byte changed:\n%s", got)
			}
			if !sameOrdered(t, got, []byte(want)) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			again, err := OCI(got, c.verdict)
			if err != nil || !bytes.Equal(again, got) {
				t.Errorf("the second time changes it (%v):\n%s\n%s", err, got, again)
			}
		})
	}
}

// sameOrdered compares documents except for white space between tokens: order, spelling and numbers
// count.
func sameOrdered(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y bytes.Buffer
	if err := json.Compact(&x, a); err != nil {
		t.Fatalf("no JSON any more: %v", err)
	}
	if err := json.Compact(&y, b); err != nil {
		t.Fatal(err)
	}
	return x.String() == y.String()
}

func TestOCICreatesMissingMembers(t *testing.T) {
	verdict := grant.Verdict{Kind: grant.Admit, Edits: gpuEdits(), Rules: []grant.DeviceRule{
		{Allow: true, Type: 'b', Major: -1, Minor: -1, Access: "rwm"}}, Narrow: true}
	const made = `"process":{"env":["NVIDIA_VISIBLE_DEVICES=GPU-0"]},` +
		`"linux":{"devices":[{"path":"/dev/nvidia0","type":"c","major":195,"minor":0,"fileMode":438,` +
		`"uid":0,"gid":0}],` +
		`"resources":{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"b","access":"rwm"}]}}}`
	for name, c := range map[string]struct{ config, want string }{
		"nothing at all":          {`{}`, `{` + made},
		"null":                    {`null`, `{` + made},
		"null in places":          {`{"process":null,"linux":{"devices":null,"resources":null}}`, `{` + made},
		"names written by escape": {`{"proce\u0073s":{"e\u006ev":["NVIDIA_VISIBLE_DEVICES=all"]},"linux":{}}`, `{"proce\u0073s":{"e\u006ev":["NVIDIA_VISIBLE_DEVICES=GPU-0"]}` + strings.TrimPrefix(made, `"process":{"env":["NVIDIA_VISIBLE_DEVICES=GPU-0"]}`)},
	} {
		got, err := OCI([]byte(c.config), verdict)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %v, got\n%s\nwant\n%s", name, err, got, c.want)
		}
	}
}

func TestOCIRefusesSpecsThatItCannotEdit(t *testing.T) {
	verdict := grant.Verdict{Kind: grant.Admit, Edits: gpuEdits(),
		Removed: append(removal(grant.RemoveHook, "/h"), removal(grant.RemoveAnnotation, "a")...)}
	verdict.Removed = append(verdict.Removed, grant.Removal{Kind: grant.RemoveMount, Name: "/m"})
	for name, config := range map[string]string{
		"a list": `[]`, "a number": `1`, "a number for a device": `{"linux":{"devices":[1]}}`,
		"a number for a mount":         `{"mounts":[1]}`,
		"a number for a mount's place": `{"mounts":[{"destination":1}]}`,
		"a number for a hook":          `{"hooks":{"prestart":[1]}}`,
		"half a name":                  `{"a`, "a name": `{"a"`, "a name and a colon": `{"a":`,
		"a value":           `{"a":1`,
		"a name in process": `{"process":{"a"`, "an open process": `{"process":{"a":1`,
		"a list for hooks": `{"hooks":[]}`, "a list for annotations": `{"annotations":[]}`,
		"a list for process": `{"process":[]}`, "a word for the environment": `{"process":{"env":"A=1"}}`,
		"a number in it":     `{"process":{"env":[1]}}`,
		"a word for devices": `{"linux":{"devices":{"x":1}}}`, "nothing": ``,
		"truncated": `{"process":{"env":["A"`,
	} {
		if got, err := OCI([]byte(config), verdict); err == nil && name != "nothing" {
			t.Errorf("%s: got %s", name, got)
		} else if err != nil && !strings.HasPrefix(err.Error(), "cannot edit ") ||
			strings.HasPrefix(name, "a list") && !strings.HasSuffix(err.Error(), "it is no object") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOCIKeepsADocumentWithAllEdits: a document that has all of the edits stays as it is, with its
// spaces.
func TestOCIKeepsADocumentWithAllEdits(t *testing.T) {
	config := ` { "linux" : { "maskedPaths":["/other","/p"] , "x":1 } , "process": {"env":["B=1","A=1"] } } `
	got, err := OCI([]byte(config), grant.Verdict{Masked: []string{"/p"}, Edits: cdispec.ContainerEdits{
		Env: []string{"A=1"}}})
	if err != nil || string(got) != config {
		t.Errorf("%s (%v)", got, err)
	}
}

// TestOCIReadsWhatItEdits, and no other member.
func TestOCIReadsWhatItEdits(t *testing.T) {
	for _, config := range []string{
		`{"mounts":"x","hooks":"y","annotations":"z","linux":{"maskedPaths":"w"}}`,
		`{"hooks":{ "prestart" : null,"x":{}}}`, `{"annotations":{ "a" : "b" }}`, `{}`} {
		removed := removal(grant.RemoveEnv, "NONE")
		if !strings.Contains(config, "mounts") {
			removed = append(append(removed, removal(grant.RemoveAnnotation, "none")...),
				removal(grant.RemoveHook, "/none")...)
		}
		if got, err := OCI([]byte(config), grant.Verdict{Removed: removed}); err != nil ||
			string(got) != config {
			t.Errorf("%s: %s (%v)", config, got, err)
		}
	}
}

// TestCDIHasARuleForEachNode: a rule without a node would be lost.
func TestCDIHasARuleForEachNode(t *testing.T) {
	rule := grant.DeviceRule{Allow: true, Type: 'c', Major: 195, Minor: 0, Access: "rw"}
	for name, change := range map[string]func(*grant.DeviceRule){
		"": func(*grant.DeviceRule) {}, "it denies": func(r *grant.DeviceRule) { r.Allow = false },
		"a disk": func(r *grant.DeviceRule) {
			r.Type = 'b'
		}, "another major": func(r *grant.DeviceRule) { r.Major = 196 },
		"another minor": func(r *grant.DeviceRule) {
			r.Minor = 1
		}, "more access": func(r *grant.DeviceRule) { r.Access = "rwm" },
	} {
		r := rule
		change(&r)
		if _, err := CDI(grant.Verdict{Kind: grant.Admit, Edits: gpuEdits(),
			Rules: []grant.DeviceRule{rule, r}}); (err == nil) != (name == "") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOCIRefusesInvalidText: a string of the verdict that is not valid UTF-8.
func TestOCIRefusesInvalidText(t *testing.T) {
	for place, v := range map[string]grant.Verdict{
		"linux: maskedPaths": {Masked: []string{"/proc/\xff"}},
		"process: env":       {Edits: cdispec.ContainerEdits{Env: []string{"A=\xff"}}},
		"mounts": {Edits: cdispec.ContainerEdits{Mounts: []*cdispec.Mount{
			{HostPath: "/\xff", ContainerPath: "/m"}}}},
	} {
		if got, err := OCI([]byte(`{"process":{},"linux":{}}`), v); err == nil ||
			!strings.Contains(err.Error(), place+": ") {
			t.Errorf("%s: %s (%v)", place, got, err)
		}
	}
}

func TestWithout(t *testing.T) {
	for config, want := range map[string]string{
		`{"a":1,"devices":[1],"b":{ "c":2 }}`: `{"a":1,"b":{ "c":2 }}`,
		`{"devices":[]}`:                      `{}`,
		`{"d\u0065vices":[1],"a":1}`:          `{"a":1}`,
		`{"a":{"devices":[1]}}`:               `{"a":{"devices":[1]}}`,
	} {
		if got, err := Without([]byte(config), "devices"); err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v", config, got, err)
		}
	}
	if _, err := Without([]byte(`[]`), "devices"); err == nil {
		t.Error("a list loses a field")
	}
}

func TestReplacingRulesBeginWithDenyAll(t *testing.T) {
	rules := Rules(grant.Verdict{Narrow: true, Rules: []grant.DeviceRule{
		{Allow: true, Type: 'c', Major: 1, Minor: -1, Access: "rwm"}}})
	text, _ := json.Marshal(rules)
	if want := `[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":1,"access":"rwm"}]`; string(
		text) != want {
		t.Errorf("got %s", text)
	}
	if rules := Rules(grant.Verdict{}); !reflect.DeepEqual(rules, rules[:0]) && rules != nil {
		t.Errorf("rules out of nothing: %v", rules)
	}
}

// TestRulesThatCrunReadsAsEqual are removed with the one that a removal names: crun reads every
// type except a and b as a character device, and a number as a C int.
func TestRulesThatCrunReadsAsEqual(t *testing.T) {
	const before = `{"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"},%s{"allow":true,` +
		`"type":"c","major":10,"minor":254,"access":"rw"}]}}}`
	for _, rule := range []string{`"type":"c","major":195,"minor":254`, `"type":"u","major":195,"minor":254`,
		`"type":"char","major":195,"minor":254`,
		`"type":"c","major":4294967491,"minor":254`, `"type":"c","major":195,"minor":4294967550`} {
		got, err := OCI([]byte(fmt.Sprintf(before, `{"allow":true,`+rule+`,"access":"rw"},`)),
			grant.Verdict{Kind: grant.Admit, Removed: removal(grant.RemoveRule, "c 195:254")})
		if want := fmt.Sprintf(before, ""); err != nil || string(got) != want {
			t.Errorf("%s: got %s (%v), want %s", rule, got, err, want)
		}
	}
	got, err := OCI([]byte(fmt.Sprintf(before, `{"allow":true,"type":"c","major":195,`+
		`"minor":-9223372036854775808,"access":"rw"},`)),
		grant.Verdict{Kind: grant.Admit, Removed: removal(grant.RemoveRule, "c 195:*")})
	if want := fmt.Sprintf(before, ""); err != nil || string(got) != want {
		t.Errorf("below 0: got %s (%v), want %s", got, err, want)
	}
	for _, c := range []struct{ rule, name string }{{`"type":"c","major":195,"minor":4294967295`, "c 195:*"},
		{`"type":"c","major":195,"minor":4294967296`, "c 195:0"}, {`"type":"c","major":0,"minor":0`, "c 0:0"},
		{`"type":"a"`, "a *:*"}} {
		got, err := OCI([]byte(fmt.Sprintf(before, `{"allow":true,`+c.rule+`,"access":"rw"},`)),
			grant.Verdict{Kind: grant.Admit, Removed: removal(grant.RemoveRule, c.name)})
		if want := fmt.Sprintf(before, ""); err != nil || string(got) != want {
			t.Errorf("%s by %s: got %s (%v), want %s", c.rule, c.name, got, err, want)
		}
	}
	kept := fmt.Sprintf(before, `{"allow":true,"type":"b","major":195,"minor":254,"access":"rw"},`+
		`{"allow":true,"type":"c","major":195,"access":"m"},`)
	got, err = OCI([]byte(kept), grant.Verdict{Kind: grant.Admit,
		Removed: removal(grant.RemoveRule, "c 195:254")})
	if err != nil || string(got) != kept {
		t.Errorf("others go too: %s (%v)", got, err)
	}
}
