package configfile

import (
	"strings"
	"testing"
	"unicode"
)

func TestTOMLKeepsWhatItDoesNotSet(t *testing.T) {
	for name, c := range map[string]struct {
		before string
		path   []string
		value  any
		after  string // "" if an error is expected
		err    string
	}{
		"a value in its place, with its comment": {"a = 1 # one\nb=2\n", []string{"b"}, "x",
			"a = 1 # one\nb=\"x\"\n", ""},
		"the same value changes nothing": {"a   =  [ 'x',\n 'y' ] # list\n", []string{"a"},
			[]string{"x", "y"}, "a   =  [ 'x',\n 'y' ] # list\n", ""},
		"a list over many lines": {"a = [ # first\n  'x', # ] no end\n  \"]\",\n] # last\n" +
			"b = 1\n", []string{"a"}, []string{"z"}, "a = [\"z\"] # last\nb = 1\n", ""},
		"a multi-line string": {"a = \"\"\"\n\\\"\"\" x\"\"\"\"\nb = '''it''s'''\n", []string{"a"}, true,
			"a = true\nb = '''it''s'''\n", ""},
		"behind the table's last key, as indented": {"[a]\n    # why\n    x = 1\n\n  [a.b]\n    y = 2\n",
			[]string{"a", "z"}, true,
			"[a]\n    # why\n    x = 1\n    z = true\n\n  [a.b]\n    y = 2\n", ""},
		"into an empty table": {"  [a]\n\n[b]\n", []string{"a", "x"}, "v", "  [a]\n  x = \"v\"\n\n[b]\n", ""},
		"a table with keys to quote": {"a = 1\n", []string{"plugins", "io.x.y", "k"}, "v",
			"a = 1\n\n[plugins.\"io.x.y\"]\nk = \"v\"\n", ""},
		"an existing table, quoted so": {"[plugins.'io.x.y']\n", []string{"plugins", "io.x.y", "k"}, "v",
			"[plugins.'io.x.y']\nk = \"v\"\n", ""},
		"no end of line at the end": {"[a]\nx = 1", []string{"a", "y"}, 2, "[a]\nx = 1\ny = 2\n", ""},
		"Windows' line ends": {"[a]\r\nx = 'old' # c\r\n", []string{"a", "x"}, "new",
			"[a]\r\nx = \"new\" # c\r\n", ""},
		"a key of no table goes first": {"# head\n[a]\nx = 1\n", []string{"version"}, 2,
			"version = 2\n# head\n[a]\nx = 1\n", ""},
		"behind the keys of no table": {"root = '/r' # here\n[a]\n", []string{"version"}, 2,
			"root = '/r' # here\nversion = 2\n[a]\n", ""},
		"a dotted key":               {"a.b.c = 1\n", []string{"a", "b", "c"}, 2, "a.b.c = 2\n", ""},
		"a dotted key below a table": {"[a]\nb.c = 1\n", []string{"a", "b", "c"}, 2, "[a]\nb.c = 2\n", ""},
		"not into an inline table": {"x = 1\na = {b = 1}\n", []string{"a", "c"}, 2, "",
			"2: a is an inline table"},
		"not beside a dotted key": {"[a]\nb.c = 1\n", []string{"a", "b", "d"}, 2, "",
			"2: a.b.c is written with dots"},
		"not beside one of no table": {"a.b.c = 1\n", []string{"a", "b", "d"}, 2, "",
			"1: a.b.c is written with dots"},
		"not into a list of tables": {"[[a]]\nb = 1\n", []string{"a", "c"}, 2, "",
			"1: [[a]] is a list of tables"},
		"characters that TOML escapes": {"", []string{"a"}, "q\"\\\x01\n",
			"a = \"q\\\"\\\\\\u0001\\n\"\n", ""},
		"a table where a value stands": {"[a]\nb = 1\n", []string{"a"}, 2, "", "internal error"},
		"inline tables as values": {"", []string{"a", "b"}, map[string]any{"k": "v", "a.b": true},
			"[a]\nb = { \"a.b\" = true, k = \"v\" }\n", ""},
		"comments hold no keys": {"# a = 1\n[t] # a = 2\n", []string{"t", "a"}, 3,
			"# a = 1\n[t] # a = 2\na = 3\n", ""},
		"a value that a comment follows": {"a = 1#c\n", []string{"a"}, 2, "a = 2#c\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := ParseTOML([]byte(c.before))
			if err != nil {
				t.Fatal(err)
			}
			err = d.Set(c.value, c.path...)
			switch {
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("got %v, want %q", err, c.err)
			case c.err != "" && string(d.Bytes()) != c.before:
				t.Errorf("an error left\n%s", d.Bytes())
			case c.err == "" && (err != nil || string(d.Bytes()) != c.after):
				t.Errorf("got %v and\n%swant\n%s", err, d.Bytes(), c.after)
			}
		})
	}
}

func TestTOMLErrorsNameTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"a = 1\nb = = 2\n":        "2: ",
		"a = 1\na = 2\n":          "",
		"[a]\n\n[a\n":             "3: ",
		"a = 1\n\nb = \"\x01\"\n": "3: ",
	} {
		if _, err := ParseTOML([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v, want line %q", text, err, want)
		}
	}
}

// FuzzTOML: in any file, an edit sets its key and nothing else, or returns an error. set itself
// compares the trees.
func FuzzTOML(f *testing.F) {
	for _, seed := range []string{"", "a = 1\n", "[a]\nb = [1, # x\n 2]\n", "a.b = {c = 'x'}\n",
		"[[a]]\n[a.b]\n", "\"a\" = '''x'''\n", "[a]\r\nb = \"\"\"\\\"\"\"\"\r\n",
		"a = 1979-05-27 07:32:00\n"} {
		f.Add(seed, "a", "b")
	}
	f.Fuzz(func(t *testing.T, text, table, name string) {
		d, err := ParseTOML([]byte(text))
		if err != nil || !printable(table) || !printable(name) {
			return
		}
		for _, path := range [][]string{{table}, {table, name}, {"x", table, name}} {
			if old, found := d.Get(path...); found {
				switch old.(type) {
				case map[string]any, []any:
					continue // configure never replaces a table or list by a string
				}
			}
			if err := d.Set("value", path...); err != nil &&
				strings.Contains(err.Error(), "internal error") && !blocked(d.tree, path) {
				t.Errorf("%q in %q: %v", path, text, err)
			}
		}
	})
}

// blocked reports whether a value that is no table stands on a path.
func blocked(tree map[string]any, path []string) bool {
	for i := 1; i < len(path); i++ {
		if v, found := Lookup(tree, path[:i]); found {
			if _, isTable := v.(map[string]any); !isTable {
				return true
			}
		}
	}
	return false
}

// printable reports whether a name has only printable characters. The names that configure sets are
// constants, or keys that a file had.
func printable(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsPrint(r) || r == unicode.ReplacementChar
	})
}
