package request

import (
	"bytes"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/tokens"
	"github.com/gpuledger/gpuledger/internal/tokens/tokenstest"
)

func TestParse(t *testing.T) {
	deep := func(n int) string {
		return `{"x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + "}"
	}
	for _, c := range []struct{ name, config, err string }{
		{"an ordinary spec", `{"ociVersion":"1.2.0","process":{"env":["A=1"],"user":{"uid":0,"gid":0}},"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`, ""},
		{"fields of a newer specification", `{"newField":{"inner":[1,{"x":null}]},"process":{"newer":true}}`, ""},
		{"white space around it", " \n{}\t\n", ""},
		{"null", "null", ""},

		{"nothing", "", "it ends too early, at byte 0"},
		{"a truncated file", `{"process":{"env":["A=1"`, "it ends too early, at byte 24"},
		{"a truncated string", `{"process":{"env":["A=`, "it ends too early, at byte 22"},
		{"a second document", `{"process":{}}{"process":{}}`, "at byte 14: invalid character '{' after top-level value"},
		{"rubbish behind it", `{} x`, "at byte 3: invalid character 'x' after top-level value"},
		{"a byte order mark", "\ufeff{}", `at byte 0: invalid character '\ufeff' at start of value`},
		{"no JSON", `process: {}`, "at byte 0: invalid character 'p' at start of value"},
		{"a comma too many", `{"process":{},}`, "at byte 13: invalid character ',' at start of value"},
		{"not UTF-8", "{\"process\":{\"env\":[\"A=\xff\"]}}", "at byte 22: invalid UTF-8"},
		{"not UTF-8, in what nobody judges", "{\"hostname\":\"\xff\"}", "at byte 13: invalid UTF-8"},
		{"half a surrogate pair", `{"hostname":"\ud800"}`, "at byte 13: invalid surrogate pair `\\ud800\"}` in string"},

		{"a key twice", `{"process":{},"process":{}}`, "at byte 14: duplicate name process; runtimes disagree on which counts"},
		{"a key twice, once escaped", `{"process":{},"proces\u0073":{}}`, "at byte 14: duplicate name process; runtimes disagree on which counts"},
		{"a key twice, deep inside", `{"linux":{"resources":{"devices":[{"allow":false,"allow":true}]}}}`, "at byte 49: duplicate name linux.resources.devices.0.allow; runtimes disagree on which counts"},
		{"a key twice, in a map", `{"annotations":{"a":"1","a":"2"}}`, "at byte 24: duplicate name annotations.a; runtimes disagree on which counts"},
		{"a key twice, in what nobody judges", `{"x":{"y":[{"z":1,"z":2}]}}`, "at byte 18: duplicate name x.y.0.z; runtimes disagree on which counts"},

		{"a field in capitals", `{"Process":{}}`, `process is spelt "Process" there; runtimes disagree on whether it counts`},
		{"beside the right one", `{"process":{},"PROCESS":{}}`, `process is spelt "PROCESS" there; runtimes disagree on whether it counts`},
		{"a field deep inside", `{"linux":{"resources":{"devices":[{"Allow":true}]}}}`, `allow is spelt "Allow" there; runtimes disagree on whether it counts`},
		{"by the long s, which folds to an s", `{"proce` + "\u017f" + `s":{}}`, `process is spelt "proce` + "\u017f" + `s" there; runtimes disagree on whether it counts`},
		{"by the Kelvin sign, which folds to a k", `{"hoo` + "\u212a" + `s":{}}`, `hooks is spelt "hoo` + "\u212a" + `s" there; runtimes disagree on whether it counts`},
		{"by an escape", `{"\u0050rocess":{}}`, `process is spelt "Process" there; runtimes disagree on whether it counts`},
		{"right, by an escape", `{"proce\u0073s":{}}`, ""},
		{"in a list of lists, where no runtime looks", `{"mounts":[[{"Type":"x"}]]}`, "mounts.0 is of the wrong type"},
		{"a namespace's", `{"linux":{"namespaces":[{"Type":"user"}]}}`, `type is spelt "Type" there; runtimes disagree on whether it counts`},
		{"a hook's", `{"hooks":{"createRuntime":[{"PATH":"/x"}]}}`, `path is spelt "PATH" there; runtimes disagree on whether it counts`},
		{"what an edit writes", `{"linux":{"MaskedPaths":[]}}`, `maskedPaths is spelt "MaskedPaths" there; runtimes disagree on whether it counts`},
		{"what nobody here reads, as runc's own suite writes it", `{"linux":{"resources":{"CPU":{"Shares":2},"hugepageLimits":[{"pagesize":"2MB","limit":1}]}}}`, ""},
		{"what nobody here reads, beside the right one", `{"linux":{"resources":{"CPU":{},"cpu":{}}},"Hostname":"x","hostname":"y"}`, ""},
		{"a name that is read in another structure alone", `{"process":{"rlimits":[{"Type":"RLIMIT_NOFILE"}],"Mounts":[]},"x":{"Process":{}}}`, ""},
		{"after what nobody here reads", `{"linux":{"resources":{"CPU":{"Type":[{}]},"Devices":[]}}}`, `devices is spelt "Devices" there; runtimes disagree on whether it counts`},
		{"annotations with any names", `{"annotations":{"Process":"x","ANNOTATIONS":"y","gpuledger.dev/Grant":"z"}}`, ""},
		{"sysctls with any names", `{"linux":{"sysctl":{"Kernel":"1","net.IPv4.x":"1"}}}`, ""},
		{"raw cgroup keys with any names", `{"linux":{"resources":{"unified":{"Memory":"1","CPU":"2"}}}}`, ""},
		{"other maps with any names", `{"linux":{"netDevices":{"Host":{"name":"x"}},"timeOffsets":{"Linux":{}},"resources":{"rdma":{"Path":{}}}}}`, ""},
		{"but not the maps' own names", `{"Annotations":{}}`, `annotations is spelt "Annotations" there; runtimes disagree on whether it counts`},

		{"NUL in the environment, where crun ends", `{"process":{"env":["A=1\u0000x"]}}`, "process.env.0 has a NUL; runtimes disagree on what it ends"},
		{"NUL in a mount's source", `{"mounts":[{"destination":"/x","source":"/dev/nvidia0\u0000x"}]}`, "mounts.0.source has a NUL; runtimes disagree on what it ends"},
		{"NUL in a device's path", `{"linux":{"devices":[{"path":"/dev/x\u0000","type":"c"}]}}`, "linux.devices.0.path has a NUL; runtimes disagree on what it ends"},
		{"NUL in a rule's type", `{"linux":{"resources":{"devices":[{"allow":true,"type":"a\u0000"}]}}}`, "linux.resources.devices.0.type has a NUL; runtimes disagree on what it ends"},
		{"NUL in a field's name, which crun takes for the field", `{"linux\u0000x":{}}`, `linux\x00x has a NUL; runtimes disagree on what it ends`},
		{"NUL in an annotation's key", `{"annotations":{"org.systemd.property.DeviceAllow\u0000x":"1"}}`, `annotations.org.systemd.property.DeviceAllow\x00x has a NUL; runtimes disagree on what it ends`},
		{"NUL in a raw cgroup key", `{"linux":{"resources":{"unified":{"dmem.max\u0000x":"1"}}}}`, `linux.resources.unified.dmem.max\x00x has a NUL; runtimes disagree on what it ends`},
		{"NUL in what an annotation says", `{"annotations":{"note":"a\u0000b"}}`, ""},
		{"a backslash and then u0000", `{"process":{"env":["A=\\u0000"]}}`, ""},

		{"as many device rules as there may be", `{"linux":{"resources":{"devices":[{}` + strings.Repeat(",{}", maxRules-1) + `]}}}`, ""},
		{"more device rules", `{"linux":{"resources":{"devices":[{}` + strings.Repeat(",{}", maxRules) + `]}}}`, "it has 4097 device rules, more than 4096"},
		{"as many mounts as there may be", `{"mounts":[{}` + strings.Repeat(",{}", tokens.MaxElements-1) + `]}`, ""},
		{"more mounts", `{"mounts":[{}` + strings.Repeat(",{}", tokens.MaxElements) + `]}`, "mounts has more than 131072 elements"},
		{"more devices", `{"linux":{"devices":[{}` + strings.Repeat(",{}", tokens.MaxElements) + `]}}`, "linux.devices has more than 131072 elements"},
		{"more hooks", `{"hooks":{"poststop":[{}` + strings.Repeat(",{}", tokens.MaxElements) + `]}}`, "hooks.poststop has more than 131072 elements"},
		{"many words", `{"process":{"env":[""` + strings.Repeat(`,""`, 1<<19) + `]}}`, ""},
		{"more words than a kernel takes", `{"process":{"env":[""` + strings.Repeat(`,""`, tokens.MaxStrings) + `]}}`, "process.env has more than 1048576 elements"},
		{"a list for a structure", `{"process":[]}`, "process is of the wrong type"},
		{"a list for the whole", `[]`, "the whole file is of the wrong type"},
		{"a word for a list", `{"process":{"env":"A=1"}}`, "process.env is of the wrong type"},
		{"a number in the environment", `{"process":{"env":["A=1",2]}}`, "process.env.1 is of the wrong type"},
		{"a word for a major", `{"linux":{"devices":[{"path":"/dev/x","type":"c","major":"195"}]}}`, "linux.devices.0.major is of the wrong type"},
		{"a fraction for a major", `{"linux":{"devices":[{"major":195.5}]}}`, "linux.devices.0.major is of the wrong type"},
		{"a number that does not fit", `{"linux":{"devices":[{"major":99999999999999999999}]}}`, "linux.devices.0.major is of the wrong type"},
		{"a word for a truth", `{"linux":{"resources":{"devices":[{"allow":"true"}]}}}`, "linux.resources.devices.0.allow is of the wrong type"},
		{"a user below 0", `{"process":{"user":{"uid":-1}}}`, "process.user.uid is of the wrong type"},
		{"a number for an annotation with a terminal's code in its key", `{"annotations":{"\u001b[2J":1}}`, `annotations.\x1b[2J is of the wrong type`},

		{"9,000 lists inside each other", deep(9000), ""},
		{"a million lists inside each other", deep(1 << 20), "at byte 10004: exceeded max depth"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse([]byte(c.config))
			if message(err) != c.err {
				t.Errorf("got  %s\nwant %s", message(err), c.err)
			}
		})
	}
}

func TestParseRefusesWhatIsTooLarge(t *testing.T) {
	huge := bytes.Repeat([]byte(" "), 50<<20)
	copy(huge, `{}`)
	if _, err := Parse(huge); message(err) != "it has 52428800 bytes, more than 16777216" {
		t.Errorf("got %v", err)
	}
	if _, err := Parse([]byte(`{"` + strings.Repeat("x", 1<<20) + `":1}`)); err != nil {
		t.Errorf("a long name is refused: %v", err)
	}
	_, err := Parse([]byte(`{"annotations":{"` + strings.Repeat("x", 1<<20) + `":1}}`))
	if len(message(err)) > 300 || err == nil {
		t.Errorf("an error of %d bytes", len(message(err)))
	}
}

func TestParseReadsWhatIsJudged(t *testing.T) {
	spec, err := Parse([]byte(`{"root":{"path":"rootfs"},"process":{"env":["A=1","A=2"],"user":{"uid":7},"capabilities":{"bounding":["CAP_MKNOD"]}},
		"mounts":[{"destination":"/x","source":"/y","options":["rbind"]}],"hooks":{"prestart":[{"path":"/h"}]},"annotations":{"k":"v"},
		"linux":{"devices":[{"path":"/dev/nvidia0","type":"c","major":195,"minor":0}],"namespaces":[{"type":"user"}],
		"resources":{"devices":[{"allow":true,"type":"c","major":195,"access":"rw"}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Spec{
		Process: &Process{Env: []string{"A=1", "A=2"}, User: specs.User{UID: 7},
			Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_MKNOD"}}},
		Root:   &specs.Root{Path: "rootfs"},
		Mounts: []specs.Mount{{Destination: "/x", Source: "/y", Options: []string{"rbind"}}},
		//lint:ignore SA1019 what NVIDIA's toolkit writes
		Hooks:       &specs.Hooks{Prestart: []specs.Hook{{Path: "/h"}}},
		Annotations: map[string]string{"k": "v"},
		Linux: &Linux{Devices: []specs.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195}},
			Namespaces: []specs.LinuxNamespace{{Type: "user"}},
			Resources: &Resources{Devices: []specs.LinuxDeviceCgroup{
				{Allow: true, Type: "c", Major: ptr(195), Access: "rw"}}}},
	}
	if !reflect.DeepEqual(spec, want) {
		t.Errorf("got %+v", spec)
	}
}

// TestReadIsTheLibrarys: every field that Spec has a tag for is read, and as the library reads it.
func TestReadIsTheLibrarys(t *testing.T) {
	tokenstest.Reads(t, tokenstest.Whole((*Spec).read), nil, tokenstest.Filled[Spec](nil))
}

// TestFieldsAreThoseOfSpec: what is read is what is checked, and nothing else but what edits write.
func TestFieldsAreThoseOfSpec(t *testing.T) {
	paths, names := map[string]bool{}, map[string]bool{}
	collect("", specFields, paths, names)
	want := map[string]bool{"linux.maskedPaths": true}
	collectTypes("", reflect.TypeFor[Spec](), want)
	if got, want := sorted(paths), sorted(want); !slices.Equal(got, want) {
		t.Errorf("missing %v, too many %v", without(want, got), without(got, want))
	}
	if got := sorted(names); !slices.Equal(got, fieldNames[:]) {
		t.Errorf("names: missing %v, too many %v", without(got, fieldNames[:]), without(fieldNames[:], got))
	}
	of, want := map[string]bool{}, map[string]bool{}
	collect("", resourceFields, of, names)
	collectTypes("", reflect.TypeFor[Update](), want)
	if got, want := sorted(of), sorted(want); !slices.Equal(got, want) {
		t.Errorf("of an update %v, want %v", got, want)
	}
}

func collect(above string, in []field, paths, names map[string]bool) {
	for _, f := range in {
		paths[above+f.name], names[f.name] = true, true
		collect(above+f.name+".", f.in, paths, names)
	}
}

func collectTypes(above string, typ reflect.Type, paths map[string]bool) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct {
		return
	}
	for i := range typ.NumField() {
		if name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			paths[above+name] = true
			collectTypes(above+name+".", typ.Field(i).Type, paths)
		}
	}
}

func sorted(set map[string]bool) []string {
	var names []string
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func without(all, these []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(these, s) })
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestParseWorksInProportion to the document, whatever is in it: who writes it waits for himself
// alone, but the node pays. What is allocated stands for the work.
func TestParseWorksInProportion(t *testing.T) {
	const n, depth = 20_000, 5_000
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%q:0", fmt.Sprintf("unknownName%d", i))
	}
	words := strings.TrimSuffix(strings.Repeat(`"\u0000",`, n), ",")
	for name, config := range map[string]string{
		"unknown names":            "{" + strings.Join(names, ",") + "}",
		"NUL deep in annotations":  `{"annotations":{"x":` + strings.Repeat("[", depth) + words + strings.Repeat("]", depth) + "}}",
		"annotations, as engines'": `{"annotations":{"x":"` + strings.Repeat("x", 200_000) + `"}}`,
	} {
		_, _ = Parse([]byte(`{"x":0}`)) // what is made once
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = Parse([]byte(config))
		runtime.ReadMemStats(&after)
		if spent := (after.TotalAlloc - before.TotalAlloc) / uint64(len(config)); spent > 40 {
			t.Errorf("%s: %d bytes are allocated for each of the document", name, spent)
		}
	}
}
