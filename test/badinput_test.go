package test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/test/rig"
)

// TestBrokenConfiguration: the error is one line with file, line and key, for every mistake.
func TestBrokenConfiguration(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	for _, c := range []struct{ name, config, prints string }{
		{"unknown key", "state_dir = \"/x\"\nstate = 1\n", `FILE:2: unknown key "state"`},
		{"unknown key of a table", "[policy]\n\nmodus = \"report\"\n", `FILE:3: unknown key "policy.modus"`},
		{"unknown table", "[policies]\nmode = \"report\"\n", `FILE:1: unknown key "policies(.mode)?"`},
		{"unknown key of a list", "[[pool]]\ngpus = [\"0\"]\nmode = \"limit\"\n", `FILE:3: unknown key "pool.mode"`},
		{"wrong type", "[policy]\nreserve = 5\n", `FILE:2: policy.reserve: `},
		{"wrong type of a list", "[[pool]]\ngpus = 5\n", `FILE:2: pool.gpus: want a list of strings, not a number`},
		{"a date for a number", "[audit]\nkeep = 1979-05-27\n", `FILE:2: audit.keep: want a whole number`},
		{"wrong type of a path", "state_dir = [\"/x\"]\n", `FILE:1: state_dir: `},
		{"wrong type of a table", "policy = \"enforce\"\n", `FILE:1: policy: `},
		{"size without a unit", "[policy]\nreserve = \"5\"\n", `FILE:2: policy.reserve: .*want a whole number and a unit`},
		{"wrong word", "[policy]\nmode = \"enforced\"\n", `FILE:2: policy.mode: .*want enforce or report, not "enforced"`},
		{"unknown engine", "engine = \"rkt\"\n", `FILE:1: engine: .*want containerd or cri-o`},
		{"no TOML", "state_dir\n", `FILE:1: `},
		{"key twice", "engine = \"none\"\nengine = \"docker\"\n", `FILE:2: `},
		{"relative directory", "engine = \"none\"\nrun_dir = \"run\"\n", `FILE:2: run_dir: want an absolute path`},
		{"the root directory", "state_dir = \"/\"\n", `FILE:1: state_dir: want an absolute path`},
		{"exemption of everything", "[[policy.exempt]]\n", `FILE:1: policy.exempt\[0\]: want at least one of namespace, pod, container`},
		{"pool without GPUs", "[[pool]]\nmodes = [\"limit\"]\n", `FILE:1: pool\[0\].gpus: want indexes`},
		{"range backwards", "[[pool]]\ngpus = [\"3-1\"]\n", `FILE:2: pool\[0\].gpus: `},
		{"simulated without a file", "[inventory]\nsource = \"simulated\"\n", `FILE:1: inventory.file: `},
		{"no runtime", "[runtime]\npath = []\n", `FILE:2: runtime.path: `},
		{"interval", "[daemon]\ninterval = \"soon\"\n", `FILE:2: daemon.interval: `},
		{"not UTF-8", "engine = \"\xff\xfe\"\n", `FILE:1: `},
		{"bytes", "\x7fELF\x00\x01\x02", `FILE:1: `},
		{"too large", strings.Repeat("# comment\n", 200_000), `FILE is larger than 1048576 bytes`},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.T = t
			file := n.Write("broken.toml", c.config)
			r := n.CLI("--config", file, "grants")
			want := "^gpuledger: cannot read the configuration: " +
				strings.ReplaceAll(c.prints, "FILE", regexp.QuoteMeta(file)) + "[^\n]*\n$"
			if r.Code != 1 || !regexp.MustCompile(want).MatchString(r.Stderr) {
				t.Errorf("status %d, want 1 and %s:\n%s", r.Code, want, r.Stderr)
			}
			wantOrderly(t, r.Stderr)
		})
	}
}

func TestMissingConfiguration(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	for name, prints := range map[string]string{n.Dir + "/missing.toml": "no such file or directory",
		n.Dir: "is a directory"} {
		r := n.CLI("--config", name, "grants")
		if r.Code != 1 || !strings.HasPrefix(r.Stderr, "gpuledger: cannot read the configuration: ") ||
			!strings.Contains(r.Stderr, name+": "+prints) {
			t.Errorf("%s: %+v", name, r)
		}
		wantOrderly(t, r.Stderr)
	}
}

// TestBrokenSpec: an unreadable spec could request anything, so nothing starts, and no program
// crashes.
func TestBrokenSpec(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	whole := n.Bundle("whole").Config()
	swap := func(old, with string) []byte {
		if !bytes.Contains(whole, []byte(old)) {
			t.Fatalf("the spec has no %s", old)
		}
		return bytes.Replace(whole, []byte(old), []byte(with), 1)
	}
	huge := append(bytes.TrimSuffix(bytes.Clone(whole), []byte("}")),
		[]byte(`,"annotations":{"a":"`+strings.Repeat("x", 50<<20)+`"}}`)...)
	for _, c := range []struct {
		name   string
		config []byte
		prints string
	}{
		{"empty", nil, "ends too early"},
		{"blank", []byte(" \n\t"), "ends too early|EOF"},
		{"truncated", whole[:len(whole)/2], "ends too early, at byte"},
		{"cut within a word", whole[:9], "ends too early"},
		{"another document behind it", append(bytes.Clone(whole), '{', '}'), "at byte"},
		{"a word", []byte("nonsense"), "at byte"},
		{"a list", []byte("[]"), "the whole file is of the wrong type"},
		{"a number", []byte("1e999999"), "wrong type|."},
		{"bytes", []byte("\x7fELF\x00\x01"), "at byte 0"},
		{"not UTF-8", swap(`"PATH=/bin"`, "\"A=\xff\""), "invalid UTF-8"},
		{"half a surrogate", swap(`"PATH=/bin"`, `"A=\ud800"`), "at byte"},
		{"env of a wrong type", swap(`"env":["PATH=/bin"]`, `"env":"NVIDIA_VISIBLE_DEVICES=all"`), "process.env is of the wrong type"},
		{"env entry of a wrong type", swap(`["PATH=/bin"]`, `[7]`), "process.env.0 is of the wrong type"},
		{"mounts of a wrong type", swap(`"mounts":[`, `"mounts":{},"x":[`), "mounts is of the wrong type"},
		{"rule of a wrong type", swap(`"allow":false`, `"allow":"no"`), "linux.resources.devices.0.allow is of the wrong type"},
		{"device number of a wrong type", swap(`"linux":{`, `"linux":{"devices":[{"path":"/dev/x","type":"c","major":"195","minor":0}],`), "linux.devices.0.major is of the wrong type"},
		{"device number that is none", swap(`"linux":{`, `"linux":{"devices":[{"path":"/dev/x","type":"c","major":1e40,"minor":0.5}],`), "linux.devices.0.major is of the wrong type"},
		{"key twice", swap(`"process":{`, `"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"],`), `duplicate`},
		{"key twice, once escaped", swap(`"process":{`, `"process":{"\u0065nv":["NVIDIA_VISIBLE_DEVICES=all"],`), `duplicate`},
		{"key twice in a map", swap(`"linux":{`, `"annotations":{"a":"1","a":"2"},"linux":{`), `duplicate`},
		{"key in another case", swap(`"process":{`, `"process":{"ENV":["NVIDIA_VISIBLE_DEVICES=all"],`), `env is spelt "ENV" there`},
		{"key in another case, far down", swap(`"access":"rwm"`, `"access":"rwm","Type":"c"`), `type is spelt "Type" there`},
		{"deeply nested", []byte(strings.Repeat(`{"a":`, 1_000_000)), "depth|nest"},
		{"deeply nested lists", []byte(`{"a":` + strings.Repeat(`[`, 1_000_000)), "depth|nest"},
		{"50 MB", huge, "larger than 16777216 bytes"},
		{"50 MB of blanks", append(bytes.Repeat([]byte(" "), 50<<20), whole...), "larger than 16777216 bytes"},
		{"control characters in a name", swap(`"process":{`, `"process":{"EN\u212a":1,"\u001b[2J\nENV":[],"ENV":[],`), "."},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.T = t
			b := n.Bundle("broken")
			b.WriteConfig(c.config)
			r := b.Create()
			wantRefused(t, r, "spec-invalid")
			if !regexp.MustCompile(c.prints).MatchString(r.Stderr) {
				t.Errorf("%q is not in the output:\n%s", c.prints, r.Stderr)
			}
			if !bytes.Equal(b.Config(), c.config) {
				t.Error("config.json was changed")
			}
			if e := b.Explain("--json"); e.Code != 3 ||
				!strings.Contains(e.Stdout, `"code": "spec-invalid"`) {
				t.Errorf("explain: status %d\n%.500s%s", e.Code, e.Stdout, e.Stderr)
			}
		})
	}
}

func TestMissingSpec(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	b := n.Bundle("c")
	if err := os.Remove(b.Dir + "/config.json"); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, b.Create(), "spec-invalid")
	if err := os.Mkdir(b.Dir+"/config.json", 0o700); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, b.Create(), "spec-invalid")
	b.Dir = filepath.Join(n.Dir, "nowhere")
	wantRefused(t, b.Create(), "spec-invalid")
}

// TestOddSpecsWithoutARequest start: the wrapper is strict about what could mean a GPU, not about
// unknown fields.
func TestOddSpecsWithoutARequest(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	whole := string(n.Bundle("whole", rig.Shell("exit 0")).Config())
	for name, config := range map[string]string{
		"unknown fields": strings.Replace(whole, `{`, `{"x-vendor":{"Anything":[1,{"deep":null}]},`, 1),
		"blanks":         "\n\t " + strings.ReplaceAll(whole, ",", " ,\n") + "\n\n",
		"keys of maps":   strings.Replace(whole, `"linux":{`, `"annotations":{"ENV":"1","Env":"2","env":"3"},"linux":{`, 1),
		"nulls":          strings.Replace(whole, `"linux":{`, `"hooks":null,"annotations":null,"linux":{"devices":null,`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			n.T = t
			b := n.Bundle(fmt.Sprintf("odd%d", len(config)))
			b.WriteConfig([]byte(config))
			if r := b.Run(); r.Code != 0 {
				t.Errorf("%+v", r)
			}
			if string(b.Config()) != config {
				t.Error("config.json was changed")
			}
		})
	}
}

// wantRefused wants gpuledger's refusal and nothing else: a sentence with the code, a hint, status
// 1.
func wantRefused(t *testing.T, r rig.Result, code string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(r.Stderr, "\n"), "\n")
	if r.Code != 1 || !strings.HasPrefix(r.Stderr, "gpuledger: refused ("+code+"): ") || len(lines) != 2 ||
		!strings.HasPrefix(lines[1], "hint: ") || r.Stdout != "" {
		t.Errorf("want a refusal with %s and a hint, got status %d and\n%.2000s%.2000s", code, r.Code,
			r.Stdout, r.Stderr)
	}
	wantOrderly(t, r.Stderr)
}
