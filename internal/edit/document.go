package edit

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/tokens"
)

// object is a JSON object as it stands in a file: its members are parts of the text, not copies.
type object struct {
	text    jsontext.Value
	members []member
}

type member struct {
	name, value jsontext.Value
	inner       *object // the value, if it is an object of which parts are to be rewritten
}

// is compares the decoded name: "e\u006ev" is env.
func (m *member) is(name string) bool { return string(tokens.Name(m.name)) == name }

// part is a field to be rewritten: by a function, or by its own parts.
type part struct {
	name  string
	fn    rewriting
	parts []part
}

// rewriting writes a field's new value. old is the present value, or nil. If the value stays, it
// returns false and writes nothing.
type rewriting func(w *tokens.Writer, old jsontext.Value) (changed bool, err error)

// change rewrites the parts of an object and leaves every other byte of its values as it is,
// including unknown fields and their order. It makes missing objects on the way to a part. If no
// part changes, it returns doc. The objects are read once, and the document is written once; more
// is about how many bytes it grows by.
func change(doc jsontext.Value, more int, parts []part) (jsontext.Value, error) {
	o, err := take(doc, parts)
	if err != nil {
		return nil, err
	}
	w := tokens.NewWriter()
	w.Grow(len(doc) + more)
	if changed, err := o.rewrite(w, parts); err != nil || !changed {
		return doc, err
	}
	return w.End()
}

// rewrite writes an object with its parts rewritten. If none changes, it writes nothing.
func (o *object) rewrite(w *tokens.Writer, parts []part) (changed bool, err error) {
	start := w.Len()
	w.Object(func() {
		for i := range o.members {
			if err == nil {
				m := &o.members[i]
				err = rewriteMember(w, m, partOf(parts, m), &changed)
			}
		}
		for i := range parts {
			if err == nil && !slices.ContainsFunc(o.members, func(m member) bool {
				return m.is(parts[i].name)
			}) {
				err = addMember(w, &parts[i], &changed)
			}
		}
	})
	if err != nil || !changed {
		w.Cut(start)
	}
	return changed, err
}

// rewriteMember writes a member, with a new value if p says so and gives one.
func rewriteMember(w *tokens.Writer, m *member, p *part, changed *bool) error {
	w.Member(m.name)
	value := w.Len()
	if p != nil {
		rewritten, err := p.rewrite(w, m)
		if err != nil {
			return err
		}
		if rewritten && !bytes.Equal(w.Since(value), m.value) {
			*changed = true
			return nil
		}
		w.Cut(value)
	}
	w.Raw(m.value)
	return nil
}

// addMember writes a member that the object does not have, if p gives it a value.
func addMember(w *tokens.Writer, p *part, changed *bool) error {
	start := w.Len()
	rewritten, err := p.rewrite(w.Name(p.name), &member{})
	if rewritten {
		*changed = true
	} else {
		w.Cut(start)
	}
	return err
}

func (p *part) rewrite(w *tokens.Writer, m *member) (changed bool, err error) {
	switch {
	case p.fn != nil:
		changed, err = p.fn(w, m.value)
	case m.inner != nil:
		changed, err = m.inner.rewrite(w, p.parts)
	case isNothing(m.value):
		changed, err = new(object).rewrite(w, p.parts)
	default:
		err = errNoObject
	}
	if err == nil {
		err = w.Err()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", p.name, err)
	}
	return changed, err
}

// partOf returns the part that a member is, or nil.
func partOf(parts []part, m *member) *part {
	for i := range parts {
		if m.is(parts[i].name) {
			return &parts[i]
		}
	}
	return nil
}

var errNoObject = errors.New("it is no object")

// isNothing reports whether a value is missing or null, which is like an empty object.
func isNothing(value jsontext.Value) bool { return len(value) == 0 || value.Kind() == 'n' }

// take reads the members of an object, and of the objects on the way to the parts.
func take(text jsontext.Value, parts []part) (o *object, err error) {
	if isNothing(text) {
		return &object{text: text}, nil
	}
	err = tokens.Whole(text, func(d *jsontext.Decoder) (err error) {
		o, err = takeNext(d, text, parts)
		return err
	})
	return o, err
}

func takeNext(d *jsontext.Decoder, text jsontext.Value, parts []part) (*object, error) {
	if token, err := d.ReadToken(); err != nil || token.Kind() != '{' {
		return nil, errNoObject
	}
	start := d.InputOffset() - 1
	// a config.json has some ten, its largest object twice as many
	o := object{members: make([]member, 0, 16)}
	for d.PeekKind() != '}' {
		name, err := next(d, text)
		if err != nil {
			return nil, err
		}
		m := member{name: name}
		if p := partOf(parts, &m); p != nil && p.fn == nil && d.PeekKind() == '{' {
			if m.inner, err = takeNext(d, text, p.parts); err == nil {
				m.value = m.inner.text
			}
		} else {
			m.value, err = next(d, text)
		}
		if err != nil {
			return nil, err
		}
		o.members = append(o.members, m)
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	end := d.InputOffset()
	o.text = text[start:end:end]
	return &o, nil
}

// next reads a value and returns it as a part of the text: what the decoder returns is valid only
// until its next call.
func next(d *jsontext.Decoder, text jsontext.Value) (jsontext.Value, error) {
	value, err := d.ReadValue()
	if err != nil {
		return nil, err
	}
	end := d.InputOffset()
	return text[end-int64(len(value)) : end : end], nil
}

// list rewrites an array. Elements for which keep is true stay as they are, and those of add are
// appended. read decodes what keep needs of an element.
func list[T, A any](w *tokens.Writer, old jsontext.Value, read func(*jsontext.Decoder, *T) error,
	keep func(T) bool, add additions[A]) (changed bool, err error) {
	kept, all := make([]jsontext.Value, 0, 32), 0
	var element T
	if len(old) > 0 {
		err = tokens.Whole(old, func(d *jsontext.Decoder) error {
			return tokens.Elements(d, tokens.MaxElements, func() error {
				all++
				from := d.InputOffset()
				element = *new(T)
				err := read(d, &element)
				if err == nil && keep(element) {
					kept = append(kept, bytes.TrimLeft(old[from:d.InputOffset()], ", \t\r\n"))
				}
				return err
			})
		})
	}
	if err != nil || len(kept) == all && len(add.items) == 0 {
		return false, err
	}
	w.Array(func() {
		for _, value := range kept {
			w.Raw(value)
		}
		for _, item := range add.items {
			add.write(w, item)
		}
	})
	return true, nil
}

// additions are the elements that are appended to a list.
type additions[A any] struct {
	items []A
	write func(*tokens.Writer, A)
}

// word returns a function that reads the string with this name in an object.
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

// Without removes one field from an object and leaves the rest as it is.
func Without(text []byte, field string) ([]byte, error) {
	o, err := take(text, nil)
	if err != nil {
		return nil, err
	}
	w := tokens.NewWriter()
	o.some(w, func(m *member) bool { return !m.is(field) })
	return w.End()
}

// some writes an object with the members for which stays is true.
func (o *object) some(w *tokens.Writer, stays func(*member) bool) {
	w.Object(func() {
		for i := range o.members {
			if m := &o.members[i]; stays(m) {
				w.Member(m.name).Raw(m.value)
			}
		}
	})
}
