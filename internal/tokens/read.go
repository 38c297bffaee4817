// Package tokens reads and writes JSON token by token. Reflection builds a table for every type
// that a process meets; a program that lives for three milliseconds at every container's create
// builds each for nothing, and that was an eighth of its time (docs/adr/0034). What it reads and
// writes is what the JSON library does with the same types, which the tests of its users hold.
package tokens

import (
	"bytes"
	"encoding"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// WrongTypeError is a value of another type than the field's, or a number that does not fit.
type WrongTypeError struct{ Pointer jsontext.Pointer }

func (e *WrongTypeError) Error() string {
	return "wrong type at " + strconv.Quote(string(e.Pointer))
}

// TooManyError says that a list is longer than what is read.
type TooManyError struct {
	Pointer jsontext.Pointer
	Max     int
}

func (e *TooManyError) Error() string {
	return fmt.Sprintf("more than %d elements at %q", e.Max, string(e.Pointer))
}

// What a list may have at most. A kernel takes no more of either: 100,000 mounts in a namespace
// (fs.mount-max), and for a process's words 6 MiB, of which each takes 9 bytes and more
// (fs/exec.c). Without a bound an empty object of two bytes is a structure of hundreds.
const (
	MaxElements = 1 << 17
	MaxStrings  = 1 << 20
)

// wrong skips a value, so that the pointer says where it is.
func wrong(d *jsontext.Decoder) error {
	if err := d.SkipValue(); err != nil {
		return err
	}
	return &WrongTypeError{d.StackPointer()}
}

// decoders are used again: a create reads some forty documents and lists, most of them of a few
// bytes.
var decoders = sync.Pool{New: func() any { return new(decoder) }}

type decoder struct {
	jsontext.Decoder
	text bytes.Buffer
}

func (d *decoder) over(data []byte, options ...jsontext.Options) {
	d.text = *bytes.NewBuffer(data)
	d.Reset(&d.text, options...)
}

// Whole reads a document of one value with nothing behind it. The decoder is the function's until
// it returns.
func Whole(data []byte, read func(*jsontext.Decoder) error, options ...jsontext.Options) error {
	own := decoders.Get().(*decoder)
	own.over(data, options...)
	defer func() {
		own.over(nil) // holds on to no document
		decoders.Put(own)
	}()
	d := &own.Decoder
	if err := read(d); err == io.EOF {
		return &jsontext.SyntacticError{ByteOffset: d.InputOffset(), Err: io.ErrUnexpectedEOF}
	} else if err != nil {
		return err
	}
	rest := bytes.TrimLeft(data[d.InputOffset():], " \t\r\n")
	if len(rest) == 0 {
		return nil
	}
	first, _ := utf8.DecodeRune(rest)
	return &jsontext.SyntacticError{ByteOffset: int64(len(data) - len(rest)),
		Err: fmt.Errorf("invalid character %q after top-level value", first)}
}

// Object reads an object: member reads the value of each of its names, or skips it. Null has none.
// The name is valid until the value is read.
func Object(d *jsontext.Decoder, member func(name []byte) error) error {
	return Members(d, func(quoted jsontext.Value) error { return member(Name(quoted)) })
}

// Members is Object for who needs the names as they stand.
func Members(d *jsontext.Decoder, member func(quoted jsontext.Value) error) error {
	switch d.PeekKind() {
	case 'n':
		_, err := d.ReadToken()
		return err
	case '{', 0:
	default:
		return wrong(d)
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() != '}' {
		quoted, err := d.ReadValue()
		if err != nil {
			return err
		}
		if err := member(quoted); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

// Name takes the quotes off, and escapes where there are any, of a name that a decoder has read.
func Name(quoted jsontext.Value) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	text, _ := jsontext.AppendUnquote(nil, quoted)
	return text
}

// List reads an array of MaxElements at most. Null is nil. It is read into the room that the list
// has.
func List[T any](d *jsontext.Decoder, list *[]T, read func(*jsontext.Decoder, *T) error) error {
	return bounded(d, list, MaxElements, read)
}

func bounded[T any](d *jsontext.Decoder, list *[]T, most int, read func(*jsontext.Decoder, *T) error) error {
	if d.PeekKind() == 'n' {
		*list = nil
	} else if *list = (*list)[:0]; *list == nil {
		*list = make([]T, 0, 4) // most have a few
	}
	return Elements(d, most, func() error {
		*list = append(*list, *new(T))
		return read(d, &(*list)[len(*list)-1])
	})
}

// Elements reads an array of so many elements at most: element reads each. Null has none.
func Elements(d *jsontext.Decoder, most int, element func() error) error {
	switch d.PeekKind() {
	case 'n':
		_, err := d.ReadToken()
		return err
	case '[', 0:
	default:
		return wrong(d)
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for n := 0; d.PeekKind() != ']'; n++ {
		if n == most {
			return &TooManyError{d.StackPointer().Parent(), most}
		}
		if err := element(); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

// Map reads an object of any names. Null is nil.
func Map[T any](d *jsontext.Decoder, m *map[string]T, read func(*jsontext.Decoder, *T) error) error {
	if d.PeekKind() == 'n' {
		*m = nil
	} else if *m == nil {
		*m = map[string]T{}
	}
	return Object(d, func(name []byte) error {
		key, value := string(name), *new(T)
		err := read(d, &value)
		(*m)[key] = value
		return err
	})
}

// Pointer reads a value that may be missing: null is nil.
func Pointer[T any](d *jsontext.Decoder, p **T, read func(*jsontext.Decoder, *T) error) error {
	if d.PeekKind() == 'n' {
		*p = nil
		_, err := d.ReadToken()
		return err
	}
	*p = new(T)
	return read(d, *p)
}

// String reads a string. Null is "".
func String[T ~string](d *jsontext.Decoder, s *T) error {
	switch d.PeekKind() {
	case '"', 'n', 0:
	default:
		return wrong(d)
	}
	value, err := d.ReadValue() // costs less than a token
	if err == nil && value[0] == '"' {
		*s = T(Name(value))
	}
	return err
}

// Strings reads a list of strings.
func Strings(d *jsontext.Decoder, list *[]string) error {
	return bounded(d, list, MaxStrings, String[string])
}

// Repeated reads lists of strings of which many are the same, byte for byte: the same list then
// stands for them all, and no one may write to it.
type Repeated struct {
	text []byte
	list []string
}

// Strings reads a list of strings. Null is nil.
func (r *Repeated) Strings(d *jsontext.Decoder, list *[]string) error {
	if d.PeekKind() != '[' {
		return Strings(d, list)
	}
	text, err := d.ReadValue()
	if err != nil {
		return err
	}
	if !bytes.Equal(text, r.text) {
		r.text = append(r.text[:0], text...)
		r.list = nil
		err = Whole(r.text, func(d *jsontext.Decoder) error { return Strings(d, &r.list) })
		r.list = slices.Clip(r.list)
	}
	*list = r.list
	if wrong, ok := err.(*WrongTypeError); ok {
		r.text = nil
		return &WrongTypeError{d.StackPointer() + wrong.Pointer}
	}
	return err
}

// Bool reads a truth. Null is false.
func Bool(d *jsontext.Decoder, b *bool) error {
	switch d.PeekKind() {
	case 't', 'f', 'n', 0:
	default:
		return wrong(d)
	}
	token, err := d.ReadToken()
	*b = err == nil && token.Kind() == 't'
	return err
}

// Int reads an integer that fits. Null is 0.
func Int[T ~int | ~int64](d *jsontext.Decoder, n *T) error {
	return number(d, func(text string) (err error) {
		value, err := strconv.ParseInt(text, 10, 64)
		if *n = T(value); err == nil && int64(*n) != value {
			err = strconv.ErrRange
		}
		return err
	})
}

// Uint32 reads an integer of 32 bits without a sign. Null is 0.
func Uint32[T ~uint32](d *jsontext.Decoder, n *T) error {
	return number(d, func(text string) error {
		value, err := strconv.ParseUint(text, 10, 32)
		*n = T(value)
		return err
	})
}

// Uint64 reads an integer of 64 bits without a sign. Null is 0.
func Uint64[T ~uint64](d *jsontext.Decoder, n *T) error {
	return number(d, func(text string) error {
		value, err := strconv.ParseUint(text, 10, 64)
		*n = T(value)
		return err
	})
}

func number(d *jsontext.Decoder, parse func(text string) error) error {
	switch d.PeekKind() {
	case 'n':
		_, err := d.ReadToken()
		return err
	case '0', 0:
	default:
		return wrong(d)
	}
	value, err := d.ReadValue()
	if err != nil {
		return err
	}
	if parse(string(value)) != nil {
		return &WrongTypeError{d.StackPointer()}
	}
	return nil
}

// Text reads a string that its type judges. Null leaves it as it is: it is meant for new values.
func Text(d *jsontext.Decoder, v encoding.TextUnmarshaler) error {
	null := d.PeekKind() == 'n'
	var text string
	if err := String(d, &text); err != nil || null {
		return err
	}
	if err := v.UnmarshalText([]byte(text)); err != nil {
		return fmt.Errorf("%s: %w", d.StackPointer(), err)
	}
	return nil
}

// Time reads an RFC 3339 time. Null is the zero time. The library is stricter than package time,
// and looks up how to read a type: what is written as we write all times is read without it, to
// which package time is as strict.
func Time(d *jsontext.Decoder, t *time.Time) error {
	value, err := d.ReadValue()
	if err != nil {
		return err
	}
	if isUTC(value) {
		*t, err = time.Parse(time.RFC3339, string(value[1:len(value)-1]))
	} else {
		err = json.Unmarshal(value, t)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", d.StackPointer(), err)
	}
	return nil
}

// isUTC reports whether a value is a string in the form of a time in UTC, with whatever digits.
func isUTC(value jsontext.Value) bool {
	const form = `"0000-00-00T00:00:00`
	rest, ends := bytes.CutSuffix(value, []byte(`Z"`))
	if !ends || len(rest) < len(form) {
		return false
	}
	for i := range form {
		if c := rest[i]; c != form[i] && (form[i] != '0' || c < '0' || c > '9') {
			return false
		}
	}
	fraction := rest[len(form):]
	return len(fraction) == 0 || len(fraction) > 1 && fraction[0] == '.' &&
		len(bytes.Trim(fraction[1:], "0123456789")) == 0
}
