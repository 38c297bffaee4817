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

// change rewrites the value at path and leaves every other byte of the document's values as it is, unknown fields and
// their order included. A missing value is given to fn as nil; objects on the way to it are made. When fn returns what
// it was given, nothing changes.
func change(doc jsontext.Value, path []string, fn func(jsontext.Value) (jsontext.Value, error)) (jsontext.Value, error) {
	if len(path) == 0 {
		return fn(doc)
	}
	members, err := read(doc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path[0], err)
	}
	i := slices.IndexFunc(members, func(m member) bool { return m.is(path[0]) })
	var old jsontext.Value
	if i >= 0 {
		old = members[i].value
	}
	value, err := change(old, path[1:], fn)
	if err != nil || bytes.Equal(value, old) {
		return doc, err
	}
	if i < 0 {
		i = len(members)
		quoted, err := jsontext.AppendQuote(nil, path[0])
		if err != nil {
			return nil, err
		}
		members = append(members, member{name: quoted})
	}
	members[i].value = value
	return write(members), nil
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
