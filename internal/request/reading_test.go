package request

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestEachFieldsTypeCounts: a word where a runtime wants something else is refused in each field
// that is read.
func TestEachFieldsTypeCounts(t *testing.T) {
	for path, config := range map[string]string{
		"process":                         `{"process":7}`,
		"process.args":                    `{"process":{"args":7}}`,
		"process.env":                     `{"process":{"env":7}}`,
		"process.user":                    `{"process":{"user":7}}`,
		"process.capabilities":            `{"process":{"capabilities":7}}`,
		"process.noNewPrivileges":         `{"process":{"noNewPrivileges":7}}`,
		"root":                            `{"root":7}`,
		"mounts":                          `{"mounts":7}`,
		"hooks":                           `{"hooks":7}`,
		"annotations":                     `{"annotations":7}`,
		"linux":                           `{"linux":7}`,
		"linux.devices":                   `{"linux":{"devices":7}}`,
		"linux.namespaces":                `{"linux":{"namespaces":7}}`,
		"linux.resources":                 `{"linux":{"resources":7}}`,
		"linux.cgroupsPath":               `{"linux":{"cgroupsPath":7}}`,
		"linux.intelRdt":                  `{"linux":{"intelRdt":7}}`,
		"linux.intelRdt.closID":           `{"linux":{"intelRdt":{"closID":7}}}`,
		"linux.rootfsPropagation":         `{"linux":{"rootfsPropagation":7}}`,
		"linux.uidMappings":               `{"linux":{"uidMappings":7}}`,
		"linux.gidMappings":               `{"linux":{"gidMappings":7}}`,
		"linux.resources.devices":         `{"linux":{"resources":{"devices":7}}}`,
		"linux.resources.unified":         `{"linux":{"resources":{"unified":7}}}`,
		"linux.resources.unified.x":       `{"linux":{"resources":{"unified":{"x":7}}}}`,
		"linux.namespaces.0.type":         `{"linux":{"namespaces":[{"type":7}]}}`,
		"linux.gidMappings.0.size":        `{"linux":{"gidMappings":[{"size":"7"}]}}`,
		"linux.uidMappings.0.containerID": `{"linux":{"uidMappings":[{"containerID":"7"}]}}`,
	} {
		if _, err := Parse([]byte(config)); message(err) != path+" is of the wrong type" {
			t.Errorf("%s: %v", config, err)
		}
	}
}

// TestEachElementsNamesCount: not the first's alone, and what comes after the list.
func TestEachElementsNamesCount(t *testing.T) {
	for config, want := range map[string]string{
		`{"mounts":[{"type":"a"},{"type":"b"},{"Type":"c"}]}`:   `type is spelt "Type" there; runtimes disagree on whether it counts`,
		`{"mounts":[{"type":"a"},{"type":"b"}],"Process":{}}`:   `process is spelt "Process" there; runtimes disagree on whether it counts`,
		`{"mounts":[],"hooks":{"poststop":[{},{"PATH":"/x"}]}}`: `path is spelt "PATH" there; runtimes disagree on whether it counts`,
	} {
		if _, err := Parse([]byte(config)); message(err) != want {
			t.Errorf("%s: %v, want %s", config, err, want)
		}
	}
}

// TestOtherErrorsAreToldAsTheyAre.
func TestOtherErrorsAreToldAsTheyAre(t *testing.T) {
	if err := errors.New("something else"); plain(err) != err {
		t.Errorf("got %v", plain(err))
	}
	if got := majorClasses(map[string]int{"nvidiactl": 195, "nvidia-uvm": 508}); len(got) != 2 ||
		got[195] != grant.ClassGPU || got[508] != grant.ClassUVM {
		t.Errorf("majors are %v", got)
	}
}

// TestAsLargeAsADocumentMayBe: one byte more is refused.
func TestAsLargeAsADocumentMayBe(t *testing.T) {
	full := []byte("{}" + strings.Repeat(" ", MaxSpec-2))
	if _, err := Parse(full); err != nil {
		t.Errorf("a spec: %v", err)
	}
	if _, err := ParseUpdate(full); err != nil {
		t.Errorf("an update: %v", err)
	}
	if _, err := Parse(append(full, ' ')); message(err) != "it has 16777217 bytes, more than 16777216" {
		t.Errorf("a spec: %v", err)
	}
	if _, err := ParseUpdate(append(full, ' ')); message(err) != "it has more than 16777216 bytes" {
		t.Errorf("an update: %v", err)
	}
}

func TestStringsInTheText(t *testing.T) {
	for text, want := range map[string]string{
		`"a":1`: `"a"`, `"":1`: `""`, `"a\"b","c"`: `"a\"b"`, `"a\\":1`: `"a\\"`, `"a\\\"b" "c"`: `"a\\\"b"`,
		`"\\"`: `"\\"`, `"open`: `"open`, `"open\"`: `"open\"`,
	} {
		if got := string(quotedAt([]byte(text))); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	for text, want := range map[string]bool{":": true, " \t\r\n:1": true, "": false, " ": false, ",": false,
		" ,:": false, `"`: false} {
		if isColon([]byte(text)) != want {
			t.Errorf("%q is a colon: %v", text, !want)
		}
	}
	for name, want := range map[string]bool{"process": false, "Process": true, "PROCESS": true,
		"proce\u017fs": true, "processes": false, "": false, "anything": false} {
		if resemblesField([]byte(name)) != want {
			t.Errorf("%q resembles a field: %v", name, !want)
		}
	}
	var r recent
	for _, name := range strings.Fields("a b c d e f g h") {
		if r.has([]byte(name)) {
			t.Errorf("%s is known before it was there", name)
		}
		r.add(name)
	}
	if r.add("i"); r.has([]byte("a")) || !r.has([]byte("b")) || !r.has([]byte("i")) {
		t.Errorf("of nine names it knows %q", r.names)
	}
}

// TestNamesAreLookedAtOnce: nothing is kept, and nothing is read a second time, of what is in
// nearly every document many times.
func TestNamesAreLookedAtOnce(t *testing.T) {
	same := []byte(`{"a":[` + strings.Repeat(`{"path":"x"},`, 1000) + `{}]}`)
	words := "{"
	for i := range 1000 {
		words += fmt.Sprintf(`"%d":"word %d",`, i%4, i)
	}
	others := []byte(words + `"x":0}`)
	for name, text := range map[string][]byte{"the same names": same, "other words": others} {
		if n := testing.AllocsPerRun(3, func() { _ = checkNames(text, specFields) }); n > 2 {
			t.Errorf("%s: %.0f allocations for the names", name, n)
		}
		if n := testing.AllocsPerRun(3, func() { _ = checkWords(text) }); n != 0 {
			t.Errorf("%s: %.0f allocations for words without NUL", name, n)
		}
	}
}

// TestNULBesideAnnotations: what is allowed in their values is allowed nowhere else, before them
// and after.
func TestNULBesideAnnotations(t *testing.T) {
	const nul = `"a\u0000b"`
	for config, want := range map[string]string{
		`{"annotations":{"x":` + nul + `},"hostname":"h"}`:         "",
		`{"annotations":{"x":[1,{"y":[` + nul + `]}]}}`:            "annotations.x is of the wrong type",
		`{"annotations":{},"hostname":` + nul + `}`:                "hostname has a NUL; runtimes disagree on what it ends",
		`{"hostname":` + nul + `,"annotations":{}}`:                "hostname has a NUL; runtimes disagree on what it ends",
		`{"x":{"annotations":{"y":` + nul + `}}}`:                  "x.annotations.y has a NUL; runtimes disagree on what it ends",
		`{"x":["annotations",` + nul + `]}`:                        "x.1 has a NUL; runtimes disagree on what it ends",
		`{"annotations":{"x":"` + `\\u0000` + `"},"hostname":"h"}`: "",
	} {
		if _, err := Parse([]byte(config)); message(err) != want {
			t.Errorf("%s: %v, want %s", config, err, want)
		}
	}
}

func TestHooksThatInjectByThemselves(t *testing.T) {
	hook := func(path string) []specs.Hook { return []specs.Hook{{Path: "/bin/true"}, {Path: path}} }
	const toolkit = "/usr/bin/nvidia-container-runtime-hook"
	for name, c := range map[string]struct {
		hooks *specs.Hooks
		want  string
	}{
		"no hooks": {nil, ""},
		//lint:ignore SA1019 what NVIDIA's toolkit writes
		"prestart":         {&specs.Hooks{Prestart: hook(toolkit)}, toolkit},
		"createRuntime":    {&specs.Hooks{CreateRuntime: hook(toolkit + ".real")}, toolkit + ".real"},
		"createContainer":  {&specs.Hooks{CreateContainer: hook("/usr/bin/nvidia-container-toolkit")}, "/usr/bin/nvidia-container-toolkit"},
		"after the start":  {&specs.Hooks{Poststart: hook(toolkit)}, toolkit},
		"somebody else's":  {&specs.Hooks{CreateRuntime: hook("/usr/bin/nvidia-container-runtime-hooks")}, ""},
		"one that it made": {&specs.Hooks{CreateRuntime: hook("/usr/bin/nvidia-cdi-hook")}, ""},
	} {
		if got, _ := AskingHook(Spec{Hooks: c.hooks}, nil); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		s := newScene(t)
		s.spec.Hooks = c.hooks
		for _, d := range s.find().Dropped {
			if !strings.HasPrefix(d.Name, "/usr/bin/nvidia-container-") ||
				strings.HasSuffix(d.Name, "hooks") {
				t.Errorf("%s: %s is dropped", name, d)
			}
		}
	}
}

// TestAnEngineThatProvesNoIdentity: its annotations say nothing, and nothing is written into them.
func TestAnEngineThatProvesNoIdentity(t *testing.T) {
	for _, engine := range []grant.Engine{grant.Podman, grant.Docker, ""} {
		s := newScene(t)
		s.caller.Container.Engine = engine
		s.spec.Annotations = map[string]string{"": "sandbox", "io.kubernetes.cri.container-type": "sandbox",
			"io.kubernetes.cri.sandbox-uid": "u"}
		if r := s.find(); r.Sandbox || r.Container.Pod != (grant.Identity{}) {
			t.Errorf("%s: a sandbox: %v, %+v", engine, r.Sandbox, r.Container.Pod)
		}
		annotations := map[string]string{}
		if WriteIdentity(annotations, engine, grant.Identity{UID: "u"}); len(annotations) > 0 {
			t.Errorf("%s: it writes %v", engine, annotations)
		}
	}
	for _, engine := range []grant.Engine{grant.Containerd, grant.CRIO} {
		s, id := newScene(t), grant.Identity{UID: "u", Namespace: "n", Pod: "p", Container: "c"}
		s.caller.Container.Engine = engine
		WriteIdentity(s.spec.Annotations, engine, id)
		if r := s.find(); r.Sandbox || r.Container.Pod != id {
			t.Errorf("%s: %+v", engine, r.Container.Pod)
		}
	}
}

// TestDevicesOfANode: all that can be asked of it, or the first error.
func TestDevicesOfANode(t *testing.T) {
	broken := errors.New("broken")
	whole := func() NodeFacts {
		n := newScene(t).node
		n.Taken = func() (map[int]bool, error) { return map[int]bool{240: true}, nil }
		return n
	}
	noMajors, noDRM, noTaken, unasked := whole(), whole(), whole(), whole()
	noMajors.Majors = func() (map[string]int, error) { return nil, broken }
	noDRM.DRM = func() (map[int]bool, error) { return nil, broken }
	noTaken.Taken = func() (map[int]bool, error) { return nil, broken }
	unasked.Taken = nil
	for name, c := range map[string]struct {
		node  NodeFacts
		taken bool
		err   error
	}{"whole": {whole(), true, nil}, "no majors": {noMajors, false, broken}, "no DRM": {noDRM, false, broken},
		"no taken ones": {noTaken, false, broken}, "taken ones not asked for": {unasked, false, nil}} {
		got, err := c.node.Devices()
		if !errors.Is(err, c.err) || got.Taken[240] != c.taken ||
			err == nil && (got.Majors[majorUVM] != grant.ClassUVM || !got.DRM[128]) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestNoRulesWiden nothing, and nothing is asked of the node for them.
func TestNoRulesWiden(t *testing.T) {
	s := newScene(t)
	s.device("/dev/dri/card0", "c", 226, 0)
	s.node.DRM = func() (map[int]bool, error) { return nil, errors.New("no sysfs") }
	if rule, widens, err := Widens(nil, s.spec, s.node); rule != "" || widens || err != nil {
		t.Errorf("%q, %v, %v", rule, widens, err)
	}
	if rule, widens, err := Widens(parseRules(t, "deny a", "allow c 195:0 rw"), s.spec, s.node); rule != "" ||
		widens || err == nil {
		t.Errorf("what the spec itself opens cannot be told: %q, %v, %v", rule, widens, err)
	}
}

// TestNothingWidensWithoutRules: if no device rule takes effect, a rule of an update opens nothing.
func TestNothingWidensWithoutRules(t *testing.T) {
	for _, unruled := range []bool{false, true} {
		s := newScene(t)
		if unruled {
			s.unruled()
		}
		rule, widens, err := Widens(parseRules(t, "allow c 195:* rw"), s.spec, s.node)
		if widens == unruled || err != nil {
			t.Errorf("unruled %v: %q, %v, %v", unruled, rule, widens, err)
		}
	}
}
