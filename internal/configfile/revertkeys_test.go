package configfile

import (
	"reflect"
	"slices"
	"testing"
)

func TestRevertKeysOfAFileWrittenAnew(t *testing.T) {
	const before = "version = 2\nimports = [\"a\"]\n[p]\n  cdi = false # why\n[p.c]\nname = \"runc\"\n"
	const after = "version = 2\nimports = [\"a\", \"b\"]\n[p]\n  cdi = true # why\n[p.c]\n" +
		"name = \"gpuledger\"\n[p.c.runtimes.gpuledger]\ntype = \"x\"\n[p.c.runtimes.gpuledger.options]\n" +
		"BinaryName = \"g\"\n"
	for name, c := range map[string]struct{ now, want string }{
		"in another order and with more": {
			"imports = [\"a\", \"b\", \"z\"]\nversion = 2\n\n[p]\n  cdi = true\n  [p.c]\n" +
				"    name = \"gpuledger\"\n    [p.c.runtimes]\n      [p.c.runtimes.gpuledger]\n" +
				"        more = 1\n        type = \"x\"\n        [p.c.runtimes.gpuledger.options]\n" +
				"          BinaryName = \"g\"\n      [p.c.runtimes.nvidia]\n        type = \"n\"\n",
			"version = 2\nimports = [\"a\", \"z\"]\n[p]\ncdi = false\n[p.c]\nname = \"runc\"\n" +
				"[p.c.runtimes.nvidia]\ntype = \"n\"\n"},
		"what others have set since stays": {
			"version = 2\nimports = [\"b\"]\n[p]\ncdi = true\n[p.c]\nname = \"nvidia\"\n" +
				"[p.c.runtimes.gpuledger]\ntype = \"y\"\n",
			"version = 2\nimports = []\n[p]\ncdi = false\n[p.c]\nname = \"nvidia\"\n"},
		"with dots": {
			"version = 2\nimports = [\"a\", \"b\"]\np.cdi = true\np.c.name = \"gpuledger\"\n" +
				"p.c.runtimes.gpuledger.type = \"x\"\n", before},
		"all of it gone": {before, before},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := RevertKeys("/x.toml", []byte(c.now), []byte(after), []byte(before), "gpuledger")
			if !ok {
				t.Fatal("it cannot be told")
			}
			is, err := Parse("/x.toml", got)
			if err != nil {
				t.Fatal(err)
			}
			want, err := Parse("/x.toml", []byte(c.want))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(is.Tree(), want.Tree()) {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestRevertKeysJSON(t *testing.T) {
	const before, after = `{"debug": true}`,
		`{"debug": true, "runtimes": {"gpuledger": {"path": "/g"}}, "default-runtime": "gpuledger", ` +
			`"features": {"cdi": true}}`
	for now, want := range map[string]string{
		"{\n \"default-runtime\": \"nvidia\",\n \"features\": {\n  \"cdi\": true\n },\n \"runtimes\": {\n" +
			"  \"gpuledger\": {\"path\": \"/g\"},\n  \"nvidia\": {\"path\": \"/n\"}\n }\n" +
			"}": "{\n \"default-runtime\": \"nvidia\",\n \"runtimes\": {\n" +
			"  \"nvidia\": {\"path\": \"/n\"}\n }\n}",
		`{"runtimes": {"gpuledger": {"path": "/g"}}, "default-runtime": "gpuledger", ` +
			`"debug": false}`: `{"debug": false}`,
	} {
		got, ok := RevertKeys("/daemon.json", []byte(now), []byte(after), []byte(before), "gpuledger")
		if !ok || string(got) != want {
			t.Errorf("got %v\n%s\nwant\n%s", ok, got, want)
		}
	}
}

// TestUnsetTakesOutNothingElse, in files with unusual layouts.
func TestUnsetTakesOutNothingElse(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{
		"a key":   {"x = 1\na.b = 2 # b\ny = 3\n", "x = 1\ny = 3\n"},
		"a table": {"[z]\ny = 1\n\n[a.b]\nc = [1,\n 2]\n# of d\n[d]\n", "[z]\ny = 1\n\n# of d\n[d]\n"},
		"a table in many places": {"[a.b.c]\nx = 1\n[d]\ny = 2\n[a]\nb.e = 1\nf = 2\n[a.b.g]\n",
			"[d]\ny = 2\n[a]\nf = 2\n"},
	} {
		d, err := ParseTOML([]byte(c.before))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Unset("a", "b"); err != nil || string(d.Bytes()) != c.after {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, d.Bytes(), c.after)
		}
	}
	d, err := ParseTOML([]byte("a = { b = 1, c = 2 }\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Unset("a", "b"); err == nil {
		t.Errorf("an inline table was edited:\n%s", d.Bytes())
	}
}

func TestDiffering(t *testing.T) {
	const a = "version = 2\n[p.\"x.y\"]\nimage = \"a\"\nsame = [1]\n" +
		"[p.\"x.y\".gone.options]\nk = 1\n[p.z]\nq = true\n"
	const b = "version = 2\n[p]\nz = 3\n[p.\"x.y\"]\nimage = \"b\"\nsame = [1]\nnew = 1\n"
	for name, c := range map[string]struct {
		other string
		want  []string
	}{
		"the same in another layout": {"p.\"x.y\".same = [ 1 ] # why\np.\"x.y\".image = 'a'\n" +
			"p.\"x.y\".gone.options.k = 1\np.z.q = true\nversion = 2\n", nil},
		"values, a table and a key of one alone": {b, []string{`p."x.y".gone`, `p."x.y".image`,
			`p."x.y".new`, "p.z"}},
	} {
		for _, texts := range [][2]string{{a, c.other}, {c.other, a}} {
			got, err := Differing("/x.toml", []byte(texts[0]), []byte(texts[1]))
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s: %q (%v), want %q", name, got, err, c.want)
			}
		}
	}
	if _, err := Differing("/x.toml", []byte(a), []byte("[")); err == nil {
		t.Error("a text that is no TOML has the same keys as another")
	}
}
