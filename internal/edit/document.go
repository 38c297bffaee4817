package edit

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/tokens"
)

// member is one field of a JSON object, name and value as they stand in the file.
type member struct{ name, value jsontext.Value }

// text is the name by its meaning: "e\u006ev" is env. The decoder has read it, so it can be unquoted.
func (m member) text() string {
	unquoted, _ := jsontext.AppendUnquote(nil, m.name)
	return string(unquoted)
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
		i := slices.IndexFunc(members, func(m member) bool { return m.text() == p.name })
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

// read takes an object apart. Nothing and null are empty objects. The members are parts of it, not copies.
func read(object jsontext.Value) ([]member, error) {
	if len(object) == 0 || object.Kind() == 'n' {
		return nil, nil
	}
	members := make([]member, 0, 16) // a config.json has some ten, its largest object twice as many
	err := tokens.Whole(object, func(d *jsontext.Decoder) error {
		if token, err := d.ReadToken(); err != nil || token.Kind() != '{' {
			return fmt.Errorf("it is no object")
		}
		for d.PeekKind() != '}' {
			name, err := next(d, object)
			if err != nil {
				return err
			}
			value, err := next(d, object)
			if err != nil {
				return err
			}
			members = append(members, member{name, value})
		}
		_, err := d.ReadToken()
		return err
	})
	return members, err
}

// next reads a value and gives it as it stands in the text that is read: what the decoder returns is valid until its next call only.
func next(d *jsontext.Decoder, text jsontext.Value) (jsontext.Value, error) {
	value, err := d.ReadValue()
	if err != nil {
		return nil, err
	}
	end := d.InputOffset()
	return text[end-int64(len(value)) : end : end], nil
}

func write(members []member) jsontext.Value {
	size := 2
	for _, m := range members {
		size += len(m.name) + len(m.value) + 2
	}
	b := bytes.NewBuffer(make([]byte, 0, size))
	for i, m := range members {
		b.WriteByte("{,"[min(i, 1)])
		b.Write(m.name)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// list rewrites an array: keep says which elements stay, as they stand; those of add are appended. Of an element it reads what is judged.
func list[T, A any](old jsontext.Value, read func(*jsontext.Decoder, *T) error, keep func(T) bool, add additions[A]) (jsontext.Value, error) {
	var kept []jsontext.Value
	all := 0
	element := func(d *jsontext.Decoder, v *T) error {
		all++
		from := d.InputOffset()
		err := read(d, v)
		if err == nil && keep(*v) {
			kept = append(kept, bytes.TrimLeft(old[from:d.InputOffset()], ", \t\r\n"))
		}
		return err
	}
	if len(old) > 0 {
		var read []T
		if err := tokens.Whole(old, func(d *jsontext.Decoder) error { return tokens.List(d, &read, element) }); err != nil {
			return nil, err
		}
	}
	if len(kept) == all && len(add.items) == 0 {
		return old, nil
	}
	w := tokens.NewWriter()
	w.Grow(len(old) + add.size + 2)
	w.Array(func() {
		for _, value := range kept {
			w.Raw(value)
		}
		for _, item := range add.items {
			add.write(w, item)
		}
	})
	return w.End()
}

// additions are what a list is to have beside what it has, and about how many bytes they are: a list of many is then written into one
// buffer, where growing one step by step would touch several times its memory.
type additions[A any] struct {
	items []A
	write func(*tokens.Writer, A)
	size  int
}

// word reads the one string of an object that has the name.
func word(name string) func(*jsontext.Decoder, *string) error {
	return func(d *jsontext.Decoder, text *string) error {
		return tokens.Object(d, func(n []byte) error {
			if string(n) == name {
				return tokens.String(d, text)
			}
			return d.SkipValue()
		})
	}
}

// Without takes one field out of an object and leaves the rest as it stands.
func Without(object []byte, field string) ([]byte, error) {
	members, err := read(object)
	if err != nil {
		return nil, err
	}
	kept := slices.DeleteFunc(members, func(m member) bool { return m.text() == field })
	if len(kept) == 0 {
		return []byte("{}"), nil
	}
	return write(kept), nil
}
