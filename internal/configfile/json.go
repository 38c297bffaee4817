package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// JSON is a JSON file. Like TOML, it is edited as text.
type JSON struct {
	text    []byte
	tree    map[string]any
	values  map[string]span       // by path
	objects map[string]jsonObject // by path
	members map[string][]span     // by the object's path; each from its name to the end of its value
}

type span struct{ start, end int }

// jsonObject is the position of an object's braces and members, as byte offsets.
type jsonObject struct {
	span
	first, last int // start of the first member, end of the last; 0 without members
}

// ParseJSON reads a file with one object. An empty or missing file is an empty object. The error
// begins with the line.
func ParseJSON(text []byte) (*JSON, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}\n")
	}
	d := &JSON{text: text, values: map[string]span{}, objects: map[string]jsonObject{},
		members: map[string][]span{}}
	dec := jsontext.NewDecoder(bytes.NewBuffer(text))
	if dec.PeekKind() != '{' {
		if _, err := dec.ReadValue(); err != nil {
			return nil, d.located(err)
		}
		return nil, errors.New("1: the file must hold one JSON object")
	}
	if err := d.readObject(dec, ""); err != nil {
		return nil, d.located(err)
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return nil, fmt.Errorf("%d: something follows the JSON object", d.row(dec.InputOffset()))
	}
	return d, json.Unmarshal(text, &d.tree)
}

func (d *JSON) row(i int64) int {
	return bytes.Count(d.text[:min(int(i), len(d.text))], []byte("\n")) + 1
}

func (d *JSON) located(err error) error {
	var syntactic *jsontext.SyntacticError
	if errors.As(err, &syntactic) {
		return fmt.Errorf("%d: %w", d.row(syntactic.ByteOffset), syntactic.Err)
	}
	return fmt.Errorf("1: %w", err)
}

// separator joins the names of a path. No name contains it.
const separator = "\x00"

func (d *JSON) readObject(dec *jsontext.Decoder, path string) error {
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	o := jsonObject{span: span{start: int(dec.InputOffset()) - 1}}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadValue()
		if err != nil {
			return err
		}
		member := span{start: int(dec.InputOffset()) - len(name)}
		if o.first == 0 {
			o.first = member.start
		}
		key, err := jsontext.AppendUnquote(nil, name)
		if err != nil {
			return err
		}
		if err := d.readMember(dec, path+separator+string(key)); err != nil {
			return err
		}
		o.last = int(dec.InputOffset())
		member.end = o.last
		d.members[path] = append(d.members[path], member)
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	o.end = int(dec.InputOffset())
	d.objects[path], d.values[path] = o, o.span
	return nil
}

func (d *JSON) readMember(dec *jsontext.Decoder, path string) error {
	if dec.PeekKind() == '{' {
		return d.readObject(dec, path)
	}
	value, err := dec.ReadValue()
	d.values[path] = span{int(dec.InputOffset()) - len(value), int(dec.InputOffset())}
	return err
}

// Bytes is the present text.
func (d *JSON) Bytes() []byte { return d.text }

// Get is the value at a path of names.
func (d *JSON) Get(path ...string) (any, bool) { return Lookup(d.tree, path) }

// Set stores a value at a path, unless it is there already. It checks that nothing else has
// changed.
func (d *JSON) Set(value any, path ...string) error {
	value = plain(value)
	if old, found := d.Get(path...); found && reflect.DeepEqual(old, value) {
		return nil
	}
	text, err := d.with(path, value)
	if err != nil {
		return err
	}
	after, err := ParseJSON(text)
	if err != nil {
		return fmt.Errorf("internal error: cannot set %s: the result is no JSON: line %w",
			strings.Join(path, "."), err)
	}
	want := copyTree(d.tree)
	if !put(want, value, path) || !reflect.DeepEqual(want, after.tree) {
		return fmt.Errorf("internal error: cannot set %s without changing something else",
			strings.Join(path, "."))
	}
	*d = *after
	return nil
}

// Tree is the file's content as the library reads it.
func (d *JSON) Tree() map[string]any { return d.tree }

// Unset takes out one member. As Set does, it checks that nothing else has changed.
func (d *JSON) Unset(path ...string) error {
	if _, found := d.Get(path...); !found {
		return nil
	}
	object, value := key(path[:len(path)-1]), d.values[key(path)]
	members := d.members[object]
	i := slices.IndexFunc(members, func(m span) bool { return m.end == value.end })
	cut := members[i]
	switch {
	case len(members) == 1:
		cut = span{d.objects[object].start + 1, d.objects[object].end - 1}
	case i == len(members)-1:
		cut.start = members[i-1].end
	default:
		cut.end = members[i+1].start
	}
	after, err := ParseJSON(splice(d.text, cut.start, cut.end, ""))
	if err != nil {
		return fmt.Errorf("internal error: cannot take out %s: the result is no JSON: line %w",
			strings.Join(path, "."), err)
	}
	if _, found := after.Get(path...); found ||
		!reflect.DeepEqual(without(d.tree, path), without(after.tree, path)) {
		return fmt.Errorf("internal error: cannot take out %s without changing something else",
			strings.Join(path, "."))
	}
	*d = *after
	return nil
}

// with is the text with a value at a path. It replaces the old value, or becomes the last member of
// the innermost object that exists on the path.
func (d *JSON) with(path []string, value any) ([]byte, error) {
	at := len(path)
	for at > 0 && d.values[key(path[:at])] == (span{}) {
		at--
	}
	if at == len(path) {
		s := d.values[key(path)]
		return splice(d.text, s.start, s.end, d.render(value, d.indent(s.start))), nil
	}
	o, isObject := d.objects[key(path[:at])]
	if !isObject {
		return nil, fmt.Errorf("%d: %s is no object", d.row(int64(d.values[key(path[:at])].start)),
			strings.Join(path[:at], "."))
	}
	for i := len(path) - 1; i > at; i-- {
		value = map[string]any{path[i]: value}
	}
	return d.insert(o, path[at], value), nil
}

func key(path []string) string {
	var b strings.Builder
	for _, name := range path {
		b.WriteString(separator + name)
	}
	return b.String()
}

// insert adds a member after an object's last one, in the same layout as the first.
func (d *JSON) insert(o jsonObject, name string, value any) []byte {
	quotedName, _ := jsontext.AppendQuote(nil, name)
	member := string(quotedName) + ": "
	if o.first == 0 {
		outer := d.indent(o.start)
		inner := outer + d.unit()
		return splice(d.text, o.start, o.end, "{\n"+inner+member+d.render(value, inner)+"\n"+outer+"}")
	}
	lead := string(d.text[o.start+1 : o.first])
	if !strings.Contains(lead, "\n") {
		return splice(d.text, o.last, o.last, ", "+member+oneLine(value))
	}
	return splice(d.text, o.last, o.last, ","+
		lead[strings.LastIndexByte(lead, '\n'):]+member+d.render(value, d.indent(o.first)))
}

// indent is the white space at the start of the line that contains offset i.
func (d *JSON) indent(i int) string {
	from := bytes.LastIndexByte(d.text[:i], '\n') + 1
	return string(d.text[from:skipBlanks(d.text, from)])
}

// unit is the indentation of one level in this file.
func (d *JSON) unit() string {
	if root := d.objects[""]; root.first > 0 {
		if unit := d.indent(root.first); unit != "" {
			return unit
		}
	}
	return "  "
}

// render is a value in JSON, for a line with this indentation.
func (d *JSON) render(value any, indent string) string {
	object, isObject := value.(map[string]any)
	if !isObject || len(object) == 0 {
		return oneLine(value)
	}
	var b strings.Builder
	for i, name := range sortedKeys(object) {
		quotedName, _ := jsontext.AppendQuote(nil, name)
		b.WriteString([]string{"{", ","}[min(i, 1)])
		b.WriteString("\n" + indent + d.unit() + string(quotedName) + ": " +
			d.render(object[name], indent+d.unit()))
	}
	return b.String() + "\n" + indent + "}"
}

func oneLine(value any) string {
	switch v := value.(type) {
	case []any:
		items := make([]string, len(v))
		for i, item := range v {
			items[i] = oneLine(item)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case map[string]any:
		var items []string
		for _, name := range sortedKeys(v) {
			items = append(items, oneLine(name)+": "+oneLine(v[name]))
		}
		return "{" + strings.Join(items, ", ") + "}"
	}
	text, _ := json.Marshal(value)
	return strings.TrimSpace(string(slices.Clip(text)))
}
