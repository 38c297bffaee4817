package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// TOML is a TOML file. It is edited as text, and the library parses it again after each
// edit.
type TOML struct {
	text   []byte
	tree   map[string]any
	keys   []tomlKey
	tables []tomlTable
}

// tomlKey is one "key = value" of the text, by byte offsets.
type tomlKey struct {
	path       []string
	table      int // index of its table's header; -1 before the first header
	start      int
	value, end int // of the value alone
}

// tomlTable is one "[table]" of the text, by byte offsets.
type tomlTable struct {
	path  []string
	array bool
	start int // start of the header's line
	end   int // end of the header's line
}

// ParseTOML parses a file. The error begins with the line.
func ParseTOML(text []byte) (*TOML, error) {
	d := &TOML{text: text, tree: map[string]any{}}
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

// Bytes is the present text.
func (d *TOML) Bytes() []byte { return d.text }

// Tree is the file's content as the library reads it.
func (d *TOML) Tree() map[string]any { return d.tree }

// Get is the value at a path of keys.
func (d *TOML) Get(path ...string) (any, bool) { return Lookup(d.tree, path) }

// Lookup is the value at a path in a tree of tables.
func Lookup(tree map[string]any, path []string) (any, bool) {
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

// Set edits the text and parses it again. Apart from the key nothing may have changed. The check
// uses the library's result, because a node stops if an engine reads its configuration otherwise
// than we do.
func (d *TOML) Set(value any, path ...string) error {
	if old, found := d.Get(path...); found && reflect.DeepEqual(old, plain(value)) {
		return nil
	}
	text, err := d.with(path, Literal(value))
	if err != nil {
		return err
	}
	after, err := ParseTOML(text)
	if err != nil {
		return fmt.Errorf("internal error: cannot set %s: the result is no TOML: line %w", Dotted(path), err)
	}
	want := copyTree(d.tree)
	if !put(want, plain(value), path) || !reflect.DeepEqual(want, after.tree) {
		return fmt.Errorf("internal error: cannot set %s without changing something else", Dotted(path))
	}
	*d = *after
	return nil
}

// Unset takes out every line of a key or a table. As Set does, it checks that nothing else has
// changed.
func (d *TOML) Unset(path ...string) error {
	if _, found := d.Get(path...); !found {
		return nil
	}
	text := d.text
	for _, cut := range slices.Backward(d.lines(path)) {
		text = splice(text, cut.start, cut.end, "")
	}
	after, err := ParseTOML(text)
	if err != nil {
		return fmt.Errorf("internal error: cannot take out %s: the result is no TOML: line %w",
			Dotted(path), err)
	}
	if want := without(d.tree, path); !reflect.DeepEqual(want, without(after.tree, path)) {
		return fmt.Errorf("cannot take out %s without changing something else", Dotted(path))
	}
	if _, found := after.Get(path...); found {
		return fmt.Errorf("%d: %s is part of an inline table, which is not edited here", d.row(0),
			Dotted(path))
	}
	*d = *after
	return nil
}

// lines are the spans of a key or a table: headers with the keys below them, and dotted keys in
// other tables.
func (d *TOML) lines(path []string) []span {
	below := func(p []string) bool { return len(p) >= len(path) && slices.Equal(p[:len(path)], path) }
	var cuts []span
	for i, t := range d.tables {
		if !below(t.path) {
			continue
		}
		end := t.end
		for _, k := range d.keys {
			if k.table == i {
				end = d.lineEnd(k.end)
			}
		}
		cuts = append(cuts, span{t.start, end})
	}
	for _, k := range d.keys {
		if below(k.path) && (k.table < 0 || !below(d.tables[k.table].path)) {
			cuts = append(cuts, span{d.lineStart(k.start), d.lineEnd(k.end)})
		}
	}
	slices.SortFunc(cuts, func(a, b span) int { return a.start - b.start })
	return cuts
}

// with is the text with a value at a path. It replaces the old value, follows the table's last key,
// or goes into a new table at the end.
func (d *TOML) with(path []string, value string) ([]byte, error) {
	for _, k := range d.keys {
		if slices.Equal(k.path, path) {
			return splice(d.text, k.value, k.end, value), nil
		}
		if n := len(k.path); n < len(path) && slices.Equal(k.path, path[:n]) {
			return nil, fmt.Errorf("%d: %s is an inline table, which is not edited here; write it as [%s]",
				d.row(k.start), Dotted(k.path), Dotted(k.path))
		}
		if n := len(path) - 1; d.depth(k.table) < n && len(k.path) > n && slices.Equal(k.path[:n], path[:n]) {
			return nil, fmt.Errorf("%d: %s is written with dots, which is not edited here; write it as [%s]",
				d.row(k.start), Dotted(k.path), Dotted(path[:n]))
		}
	}
	table, name := path[:len(path)-1], quoted(path[len(path)-1])
	for i, t := range d.tables {
		switch {
		case slices.Equal(t.path, table) && t.array:
			return nil, fmt.Errorf("%d: [[%s]] is a list of tables, where one table is wanted",
				d.row(t.start), Dotted(table))
		case slices.Equal(t.path, table):
			at, indent := d.newKeyPosition(i)
			return d.insertLine(at, indent+name+" = "+value), nil
		}
	}
	if len(table) == 0 {
		at, indent := d.newKeyPosition(-1)
		return d.insertLine(at, indent+name+" = "+value), nil
	}
	return d.insertLine(len(d.text), d.gap()+"["+Dotted(table)+"]\n"+name+" = "+value), nil
}

// depth is the number of names in a table's header.
func (d *TOML) depth(table int) int {
	if table < 0 {
		return 0
	}
	return len(d.tables[table].path)
}

// newKeyPosition is the offset and the indentation of a table's new key: those after its last one.
func (d *TOML) newKeyPosition(table int) (at int, indent string) {
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

// indent is the white space at the start of the line that contains offset i.
func (d *TOML) indent(i int) string {
	from := d.lineStart(i)
	return string(d.text[from:skipBlanks(d.text, from)])
}

// gap is the separator before text that is added at the end.
func (d *TOML) gap() string {
	if len(bytes.TrimSpace(d.text)) == 0 {
		return ""
	}
	return "\n"
}

func (d *TOML) insertLine(at int, line string) []byte {
	if at > 0 && d.text[at-1] != '\n' {
		line = "\n" + line
	}
	return splice(d.text, at, at, line+"\n")
}
