package configfile

import (
	"strings"
	"testing"
)

func TestJSONKeepsOrderAndLayout(t *testing.T) {
	for name, c := range map[string]struct {
		before string
		path   []string
		value  any
		after  string
		err    string
	}{
		"an empty file": {"", []string{"runtimes", "g", "path"}, "/x",
			"{\n  \"runtimes\": {\n    \"g\": {\n      \"path\": \"/x\"\n    }\n  }\n}\n", ""},
		"an empty object": {"{ }", []string{"a"}, true, "{\n  \"a\": true\n}", ""},
		"behind the last": {"{\n    \"z\": 1,\n    \"a\": [1,\n 2]\n}\n", []string{"m"}, "v",
			"{\n    \"z\": 1,\n    \"a\": [1,\n 2],\n    \"m\": \"v\"\n}\n", ""},
		"tabs": {"{\n\t\"a\": {\n\t\t\"b\": 1\n\t}\n}", []string{"a", "c", "d"}, 2.5,
			"{\n\t\"a\": {\n\t\t\"b\": 1,\n\t\t\"c\": {\n\t\t\t\"d\": 2.5\n\t\t}\n\t}\n}", ""},
		"on one line": {`{"b": 1, "a": {"x":1}}`, []string{"a", "y", "path"}, "/p",
			`{"b": 1, "a": {"x":1, "y": {"path": "/p"}}}`, ""},
		"a value in its place": {"{\"a\" :  [ 1 ],\n\"default-runtime\":\"runc\"  ,\"z\":0}",
			[]string{"default-runtime"}, "g", "{\"a\" :  [ 1 ],\n\"default-runtime\":\"g\"  ,\"z\":0}", ""},
		"the same value": {"{\"a\":[ \"x\" ]}", []string{"a"}, []string{"x"}, "{\"a\":[ \"x\" ]}", ""},
		"into an empty one": {"{\n  \"f\": {},\n  \"z\": 1\n}", []string{"f", "cdi"}, true,
			"{\n  \"f\": {\n    \"cdi\": true\n  },\n  \"z\": 1\n}", ""},
		"an empty one": {"{\n  \"z\": 1\n}", []string{"f"}, map[string]any{},
			"{\n  \"z\": 1,\n  \"f\": {}\n}", ""},
		"names with escapes": {`{"a\u0062": 1}`, []string{"ab"}, "v", `{"a\u0062": "v"}`, ""},
		"not into another kind": {"{\n\"runtimes\": []}", []string{"runtimes", "g"}, "v", "",
			"2: runtimes is no object"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := ParseJSON([]byte(c.before))
			if err != nil {
				t.Fatal(err)
			}
			err = d.Set(c.value, c.path...)
			switch {
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("got %v, want %q", err, c.err)
			case c.err == "" && (err != nil || string(d.Bytes()) != c.after):
				t.Errorf("got %v and\n%s\nwant\n%s", err, d.Bytes(), c.after)
			}
		})
	}
}

func TestJSONErrorsNameTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"{\n\"a\": 1,\n}":              "2: ",
		"{\n\"a\": 1,\n\"a\": 2}":      "3: ",
		"{\n// comment\n\"a\": 1}":     "2: ",
		"[1]":                          "1: the file must hold one JSON object",
		"{}\n{}":                       "2: something follows",
		"{\"a\": {\"b\": \n\"\xff\"}}": "2: ",
	} {
		if _, err := ParseJSON([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v, want line %q", text, err, want)
		}
	}
}

func FuzzJSON(f *testing.F) {
	for _, seed := range []string{"", "{}", "{\n \"a\": {\"b\": [1, {}]}}", `{"a":{ }}`, "{\"a\": null\n}"} {
		f.Add(seed, "a", "b")
	}
	f.Fuzz(func(t *testing.T, text, first, second string) {
		d, err := ParseJSON([]byte(text))
		if err != nil || !printable(first) || !printable(second) {
			return
		}
		for _, path := range [][]string{{first}, {first, second}, {"x", first, second}} {
			if err := d.Set("value", path...); err != nil && strings.Contains(err.Error(), "internal error") {
				t.Errorf("%q in %q: %v", path, text, err)
			}
		}
	})
}
