package tokenstest

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"slices"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/tokens"
)

// Whole returns a function for Reads that reads a document with a type's read method.
func Whole[T any](read func(*T, *jsontext.Decoder) error) func([]byte) (T, error) {
	return func(data []byte) (value T, err error) {
		err = tokens.Whole(data, func(d *jsontext.Decoder) error { return read(&value, d) })
		return value, err
	}
}

// Writes checks that a function writes values as the JSON library does by the fields' tags.
func Writes[T any](t *testing.T, write func(T) ([]byte, error), options []json.Options, values ...T) {
	t.Helper()
	options = append(slices.Clone(options), json.Deterministic(true))
	for _, value := range values {
		want, theirs := json.Marshal(value, options...)
		got, ours := write(value)
		if (ours == nil) != (theirs == nil) || ours == nil && !bytes.Equal(got, want) {
			t.Errorf("%+v\nwritten %s (%v)\nlibrary %s (%v)", value, got, ours, want, theirs)
		}
	}
}

// Reads checks that a function reads what the JSON library reads by the fields' tags: the document
// of a value, and that document with one thing changed.
func Reads[T any](t *testing.T, read func([]byte) (T, error), options []json.Options, value T) {
	t.Helper()
	data, err := json.Marshal(value, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	compare := func(data []byte) {
		t.Helper()
		var want T
		got, ours := read(data)
		theirs := json.Unmarshal(data, &want, options...)
		if (ours == nil) != (theirs == nil) || ours == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%q\nread    %+v (%v)\nlibrary %+v (%v)", data, got, ours, want, theirs)
		}
		if theirs != nil {
			refused++
		}
	}
	compare(data)
	if refused > 0 {
		t.Errorf("the library does not read the document: %s", data)
	}
	otherValues(t, data, compare)
	if refused == 0 {
		t.Errorf("values of another type are read: %s", data)
	}
	otherTexts(data, compare)
}

// otherValues puts values of other types in the place of each value of a document, in turn.
func otherValues(t *testing.T, data []byte, do func([]byte)) {
	t.Helper()
	var document any
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	others := []any{"x", "", -1.5, 0, true, nil, []any{}, []any{true}, map[string]any{},
		map[string]any{"x": 1.0}}
	eachValue(document, func(other any) { document = other }, func(v any, set func(any)) {
		for _, other := range others {
			set(other)
			data, err := json.Marshal(document, json.Deterministic(true))
			if err != nil {
				t.Fatal(err)
			}
			do(data)
		}
		set(v)
	})
}

// eachValue calls a function with every value in a document, and with what puts another in its
// place.
func eachValue(v any, set func(any), do func(v any, set func(any))) {
	do(v, set)
	switch in := v.(type) {
	case map[string]any:
		for name, member := range in {
			eachValue(member, func(other any) { in[name] = other }, do)
		}
	case []any:
		for i, element := range in {
			eachValue(element, func(other any) { in[i] = other }, do)
		}
	}
}

// otherTexts makes texts that no writer in Go has written: cut, with duplicate names, bytes that
// are not UTF-8, escapes, or names in another case.
func otherTexts(data []byte, do func([]byte)) {
	for i := range data {
		do(data[:i])
	}
	for _, more := range []string{" \n", "x", "{}", "\x00"} {
		do(slices.Concat(data, []byte(more)))
	}
	do(slices.Concat([]byte("\ufeff"), data))
	for d := jsontext.NewDecoder(bytes.NewReader(data)); ; {
		if d.PeekKind() != '"' {
			if _, err := d.ReadToken(); err == io.EOF {
				return
			}
			continue
		}
		text, _ := d.ReadValue()
		text = text.Clone()
		end := int(d.InputOffset())
		before, after := data[:end-len(text)], data[end:]
		put := func(others ...string) {
			for _, other := range others {
				do(slices.Concat(before, []byte(other), after))
			}
		}
		inside := string(text[1 : len(text)-1])
		put(string(bytes.ToUpper(text)), `"`+"\xff"+inside+`"`, `"`+inside+"\xc3\xff\xfe"+`"`,
			`"\ud800`+inside+`"`, `"\u0061`+inside+`"`)
		if inside != "" {
			put(escaped(inside))
		}
		if kind, n := d.StackIndex(d.StackDepth()); kind == '{' && n%2 == 1 { // a name
			for _, value := range []string{`null`, `"x"`, `1`, `{}`, `[]`, `true`} {
				put(string(text) + ":" + value + "," + string(text))
				if d.StackDepth() == 1 {
					do(fmt.Appendf(nil, "%s,%s:%s}", data[:len(data)-1], text, value))
				}
			}
			put(`"\ud800":1,"\udbff":2,`+string(text), "\"\xfe\":1,\"\xff\":2,"+string(text))
		}
	}
}

// escaped is a string in quotes with its first character as an escape.
func escaped(inside string) string {
	r := []rune(inside)
	if r[0] == '\\' || r[0] > 0xffff {
		return `"` + inside + `"`
	}
	const digits = "0123456789abcdef"
	code := []byte{'"', '\\', 'u', digits[r[0]>>12], digits[r[0]>>8&15], digits[r[0]>>4&15], digits[r[0]&15]}
	return string(code) + string(r[1:]) + `"`
}
