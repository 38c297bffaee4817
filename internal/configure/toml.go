package configure

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// document is a configuration file whose comments, order and formatting survive an edit.
type document interface {
	// get gives the value at a path of keys.
	get(path ...string) (any, bool)
	// set puts a value at a path, unless it is there already.
	set(value any, path ...string) error
	// bytes is the text as it is now.
	bytes() []byte
}

// tomlDocument is a TOML file. It is edited as text; the library reads it again after each edit.
type tomlDocument struct {
	text   []byte
	tree   map[string]any
	keys   []tomlKey
	tables []tomlTable
}

// tomlKey is one "key = value" of the text, by byte offsets.
type tomlKey struct {
	path       []string
	table      int // index of its table's header, -1 before the first
	start      int
	value, end int // of the value
}

// tomlTable is one "[table]" of the text.
type tomlTable struct {
	path  []string
	array bool
	start int // of its line
	end   int // behind its line
}

// parseTOML reads a file. The error begins with the line.
func parseTOML(text []byte) (*tomlDocument, error) {
	d := &tomlDocument{text: text, tree: map[string]any{}}
	if err := toml.Unmarshal(text, &d.tree); err != nil {
		row := 1
		var decode *toml.DecodeError
		if errors.As(err, &decode) {
			row, _ = decode.Position()
		}
		return nil, fmt.Errorf("%d: %s", row, strings.TrimPrefix(err.Error(), "toml: "))
	}
	d.locate()
	return d, nil
}

// locate finds where each key and table stands. The text is valid by now.
func (d *tomlDocument) locate() {
	d.keys, d.tables = nil, nil
	var p unstable.Parser
	p.Reset(d.text)
	var table []string
	for p.NextExpression() {
		e := p.Expression()
		path, start, end := extent(e)
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = path
			d.tables = append(d.tables, tomlTable{path: path, array: e.Kind == unstable.ArrayTable, start: d.lineStart(start), end: d.lineEnd(end)})
		case unstable.KeyValue:
			value := skipBlanks(d.text, end)
			value = skipBlanks(d.text, value+1) // behind the '='
			d.keys = append(d.keys, tomlKey{path: slices.Concat(table, path), table: len(d.tables) - 1, start: start, value: value, end: valueEnd(d.text, value)})
		}
	}
}

// extent is an expression's key, and where that begins and ends.
func extent(e *unstable.Node) (path []string, start, end int) {
	start = -1
	for it := e.Key(); it.Next(); {
		raw := it.Node().Raw
		if start < 0 {
			start = int(raw.Offset)
		}
		path, end = append(path, string(it.Node().Data)), int(raw.Offset+raw.Length)
	}
	return path, start, end
}

func skipBlanks(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t') {
		i++
	}
	return i
}

func (d *tomlDocument) lineStart(i int) int { return bytes.LastIndexByte(d.text[:i], '\n') + 1 }

func (d *tomlDocument) lineEnd(i int) int {
	if n := bytes.IndexByte(d.text[i:], '\n'); n >= 0 {
		return i + n + 1
	}
	return len(d.text)
}

func (d *tomlDocument) row(i int) int { return bytes.Count(d.text[:i], []byte("\n")) + 1 }

// valueEnd is where the value that begins at i ends, in a valid text: at the end of the line, or at a comma or bracket that
// is not its own, or before a comment.
func valueEnd(text []byte, i int) int {
	depth, end := 0, i
	for i < len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\'':
			i = stringEnd(text, i)
			end = i
			continue
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		case c == '#':
			if depth == 0 {
				return end
			}
			for i < len(text) && text[i] != '\n' {
				i++
			}
			continue
		case c == '\n' && depth == 0:
			return end
		}
		if c := text[i]; c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			end = i + 1
		}
		i++
	}
	return end
}

// stringEnd is where the string that begins at i ends. Only basic strings have escapes.
func stringEnd(text []byte, i int) int {
	quote := text[i : i+1]
	if triple := bytes.Repeat(quote, 3); bytes.HasPrefix(text[i:], triple) {
		quote = triple
	}
	for i += len(quote); i < len(text); i++ {
		switch {
		case text[i] == '\\' && quote[0] == '"':
			i++
		case bytes.HasPrefix(text[i:], quote):
			i += len(quote)
			for len(quote) == 3 && i < len(text) && text[i] == quote[0] { // up to two quotes may stand before the closing three
				i++
			}
			return i
		}
	}
	return len(text)
}

func (d *tomlDocument) bytes() []byte { return d.text }

func (d *tomlDocument) get(path ...string) (any, bool) { return lookup(d.tree, path) }

// lookup walks a tree of tables.
func lookup(tree map[string]any, path []string) (any, bool) {
	var v any = tree
	for _, name := range path {
		table, isTable := v.(map[string]any)
		if !isTable {
			return nil, false
		}
		if v, isTable = table[name]; !isTable {
			return nil, false
		}
	}
	return v, true
}

// set edits the text and reads it again. Beside the key nothing may have changed: that is checked here, with the library's
// eyes, because a configuration that an engine reads otherwise than we do stops a node.
func (d *tomlDocument) set(value any, path ...string) error {
	if old, found := d.get(path...); found && reflect.DeepEqual(old, plain(value)) {
		return nil
	}
	text, err := d.with(path, literal(value))
	if err != nil {
		return err
	}
	after, err := parseTOML(text)
	if err != nil {
		return fmt.Errorf("internal error: cannot set %s: the result is no TOML: line %w", dotted(path), err)
	}
	want := copyTree(d.tree)
	if !put(want, plain(value), path) || !reflect.DeepEqual(want, after.tree) {
		return fmt.Errorf("internal error: cannot set %s without changing something else", dotted(path))
	}
	*d = *after
	return nil
}

// with is the text with a value in its place: that of the old one, behind its table's last key, or in a new table at the
// end.
func (d *tomlDocument) with(path []string, value string) ([]byte, error) {
	for _, k := range d.keys {
		if slices.Equal(k.path, path) {
			return splice(d.text, k.value, k.end, value), nil
		}
		if n := len(k.path); n < len(path) && slices.Equal(k.path, path[:n]) {
			return nil, fmt.Errorf("%d: %s is an inline table, which is not edited here; write it as [%s]", d.row(k.start), dotted(k.path), dotted(k.path))
		}
		if n := len(path) - 1; d.depth(k.table) < n && len(k.path) > n && slices.Equal(k.path[:n], path[:n]) {
			return nil, fmt.Errorf("%d: %s is written with dots, which is not edited here; write it as [%s]", d.row(k.start), dotted(k.path), dotted(path[:n]))
		}
	}
	table, name := path[:len(path)-1], quoted(path[len(path)-1])
	for i, t := range d.tables {
		switch {
		case slices.Equal(t.path, table) && t.array:
			return nil, fmt.Errorf("%d: [[%s]] is a list of tables, where one table is wanted", d.row(t.start), dotted(table))
		case slices.Equal(t.path, table):
			at, indent := d.place(i)
			return d.insertLine(at, indent+name+" = "+value), nil
		}
	}
	if len(table) == 0 {
		at, indent := d.place(-1)
		return d.insertLine(at, indent+name+" = "+value), nil
	}
	return d.insertLine(len(d.text), d.gap()+"["+dotted(table)+"]\n"+name+" = "+value), nil
}

// depth is how many names a table's header has.
func (d *tomlDocument) depth(table int) int {
	if table < 0 {
		return 0
	}
	return len(d.tables[table].path)
}

// place is where a new key of a table stands, and how far indented: as the table's last one.
func (d *tomlDocument) place(table int) (at int, indent string) {
	if len(d.tables) == 0 {
		at = len(d.text)
	}
	if table >= 0 {
		t := d.tables[table]
		at, indent = t.end, d.indent(t.start)
	}
	for _, k := range d.keys {
		if k.table == table {
			at, indent = d.lineEnd(k.end), d.indent(k.start)
		}
	}
	return at, indent
}

// indent is the white space at the begin of the line of i.
func (d *tomlDocument) indent(i int) string {
	from := d.lineStart(i)
	return string(d.text[from:skipBlanks(d.text, from)])
}

// gap separates what is put at the end from what stands there.
func (d *tomlDocument) gap() string {
	if len(bytes.TrimSpace(d.text)) == 0 {
		return ""
	}
	return "\n"
}

func (d *tomlDocument) insertLine(at int, line string) []byte {
	if at > 0 && d.text[at-1] != '\n' {
		line = "\n" + line
	}
	return splice(d.text, at, at, line+"\n")
}

func splice(text []byte, from, to int, with string) []byte {
	return slices.Concat(text[:from], []byte(with), text[to:])
}

var bare = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func quoted(key string) string {
	if bare.MatchString(key) {
		return key
	}
	return literal(key)
}

// dotted writes a path as a table's header does.
func dotted(path []string) string {
	names := make([]string, len(path))
	for i, name := range path {
		names[i] = quoted(name)
	}
	return strings.Join(names, ".")
}

// literal writes a value in TOML. JSON's strings are TOML's.
func literal(value any) string {
	switch v := value.(type) {
	case string:
		text, _ := jsontext.AppendQuote(nil, v)
		return string(text)
	case []string:
		return literal(plain(v))
	case []any:
		items := make([]string, len(v))
		for i, item := range v {
			items[i] = literal(item)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case map[string]any:
		var items []string
		for _, key := range sortedKeys(v) {
			items = append(items, quoted(key)+" = "+literal(v[key]))
		}
		return "{ " + strings.Join(items, ", ") + " }"
	}
	return fmt.Sprint(value)
}
