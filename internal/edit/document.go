package edit

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// member is one field of a JSON object, name and value as they stand in the file.
type member struct{ name, value jsontext.Value }

// is compares a name by its meaning: "e\u006ev" is env.
func (m member) is(name string) bool {
	unquoted, err := jsontext.AppendUnquote(nil, m.name)
	return err == nil && string(unquoted) == name
}

// part is a field to be rewritten: by a function, or by its own parts.
type part struct {
	name  string
	fn    func(jsontext.Value) (jsontext.Value, error) // of what stands there, nil where nothing does
	parts []part
}

// change rewrites the parts of an object and leaves every other byte of its values as it is, unknown fields and their order
// included. Objects on the way to a part are made. Where no part changes, nothing does.
func change(doc jsontext.Value, parts []part) (jsontext.Value, error) {
	members, err := read(doc)
	if err != nil {
		return nil, err
	}
	changed := false
	for _, p := range parts {
		i := slices.IndexFunc(members, func(m member) bool { return m.is(p.name) })
		var old jsontext.Value
		if i >= 0 {
			old = members[i].value
		}
		value, err := p.apply(old)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		if bytes.Equal(value, old) {
			continue
		}
		if i < 0 {
			i = len(members)
			members = append(members, member{name: quote(p.name)})
		}
		members[i].value, changed = value, true
	}
	if !changed {
		return doc, nil
	}
	return write(members), nil
}

func (p part) apply(old jsontext.Value) (jsontext.Value, error) {
	if p.fn != nil {
		return p.fn(old)
	}
	return change(old, p.parts)
}

// quote writes a field's name; ours are all valid UTF-8.
func quote(name string) jsontext.Value {
	quoted, _ := jsontext.AppendQuote(nil, name)
	return quoted
}

// read takes an object apart. Nothing and null are empty objects.
func read(object jsontext.Value) ([]member, error) {
	if len(object) == 0 || object.Kind() == 'n' {
		return nil, nil
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(object))
	if token, err := d.ReadToken(); err != nil || token.Kind() != '{' {
		return nil, fmt.Errorf("it is no object")
	}
	var members []member
	for d.PeekKind() != '}' {
		name, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		m := member{name: name.Clone()}
		if m.value, err = d.ReadValue(); err != nil {
			return nil, err
		}
		m.value = m.value.Clone()
		members = append(members, m)
	}
	return members, nil
}

func write(members []member) jsontext.Value {
	var b bytes.Buffer
	for i, m := range members {
		b.WriteByte("{,"[min(i, 1)])
		b.Write(m.name)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// list rewrites an array: keep says which elements stay, as they stand; add is appended.
func list[T any](old jsontext.Value, keep func(T) bool, add []jsontext.Value) (jsontext.Value, error) {
	var elements []jsontext.Value
	if len(old) > 0 {
		if err := json.Unmarshal(old, &elements); err != nil {
			return nil, err
		}
	}
	var kept []jsontext.Value
	for _, e := range elements {
		var v T
		if err := json.Unmarshal(e, &v); err != nil {
			return nil, err
		}
		if keep(v) {
			kept = append(kept, e)
		}
	}
	if len(kept) == len(elements) && len(add) == 0 {
		return old, nil
	}
	var b bytes.Buffer
	b.WriteByte('[')
	for i, e := range append(kept, add...) {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(e)
	}
	b.WriteByte(']')
	return b.Bytes(), nil
}

// Without takes one field out of an object and leaves the rest as it stands.
func Without(object []byte, field string) ([]byte, error) {
	members, err := read(object)
	if err != nil {
		return nil, err
	}
	kept := slices.DeleteFunc(members, func(m member) bool { return m.is(field) })
	if len(kept) == 0 {
		return []byte("{}"), nil
	}
	return write(kept), nil
}
