// Package tokens reads and writes JSON token by token, on the decoder of go-json-experiment/json
// and without reflection. Reflection builds a table for every type of a process. A program that
// runs for three milliseconds at every container's create uses each table once, and building them
// took an eighth of its time (docs/adr/0034). The results are those of the JSON library for the
// same types; the tests of the packages that use this one check that, with package tokenstest.
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

	"github.com/go-json-experiment/json/jsontext"
)

// WrongTypeError is the error for a value of another type than the field's, or a number out of
// range.
type WrongTypeError struct{ Pointer jsontext.Pointer }

func (e *WrongTypeError) Error() string {
	return "wrong type at " + strconv.Quote(string(e.Pointer))
}

// TooManyError is the error for a list that is longer than the limit.
type TooManyError struct {
	Pointer jsontext.Pointer
	Max     int
}

func (e *TooManyError) Error() string {
	return fmt.Sprintf("more than %d elements at %q", e.Max, string(e.Pointer))
}

// The largest sizes of lists. A kernel accepts no more of either: 100,000 mounts in a namespace
// (fs.mount-max), and 6 MiB for a process's words, of which each takes at least 9 bytes
// (fs/exec.c). Without a limit, an empty object of two bytes would become a structure of hundreds.
const (
	MaxElements = 1 << 17
	MaxStrings  = 1 << 20
)

// wrong skips a value, so that the error's pointer names it.
func wrong(d *jsontext.Decoder) error {
	if err := d.SkipValue(); err != nil {
		return err
	}
	return &WrongTypeError{d.StackPointer()}
}

// decoders are reused: a create reads some forty documents and lists, most of them of a few bytes.
var decoders = sync.Pool{New: func() any { return new(decoder) }}

type decoder struct {
	jsontext.Decoder
	text bytes.Buffer
}

func (d *decoder) over(data []byte, options ...jsontext.Options) {
	d.text = *bytes.NewBuffer(data)
	d.Reset(&d.text, options...)
}

// Whole reads a document of exactly one value. The function read may use the decoder until it
// returns.
func Whole(data []byte, read func(*jsontext.Decoder) error, options ...jsontext.Options) error {
	own := decoders.Get().(*decoder)
	own.over(data, options...)
	defer func() {
		own.over(nil) // drops the reference to the document
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

// AnyUTF8 is Whole for a document that need not be UTF-8. Each wrong byte of a string is read as
// U+FFFD, as the library does.
func AnyUTF8(data []byte, read func(*jsontext.Decoder) error, options ...jsontext.Options) error {
	if !utf8.Valid(data) {
		data = bytes.Map(func(r rune) rune { return r }, data)
	}
	return Whole(data, read, append(options, jsontext.AllowInvalidUTF8(true))...)
}

// Object reads an object: member reads or skips the value of each name. Null has no members. The
// name is valid until the value is read.
func Object(d *jsontext.Decoder, member func(name []byte) error) error {
	return Members(d, func(quoted jsontext.Value) error { return member(Name(quoted)) })
}

// Members is Object with the names as they are in the text, in quotes.
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

// Name returns a name that a decoder has read, without quotes and escapes.
func Name(quoted jsontext.Value) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	text, _ := jsontext.AppendUnquote(nil, quoted)
	return text
}

// List reads an array of at most MaxElements. Null is nil. It uses the capacity of the list.
func List[T any](d *jsontext.Decoder, list *[]T, read func(*jsontext.Decoder, *T) error) error {
	return bounded(d, list, MaxElements, read)
}

// Array reads an array of exactly as many elements as it has. Null leaves them unchanged: use it
// for new values.
func Array[T any](d *jsontext.Decoder, elements []T, read func(*jsontext.Decoder, *T) error) error {
	null, n := d.PeekKind() == 'n', 0
	err := Elements(d, len(elements), func() error {
		n++
		return read(d, &elements[n-1])
	})
	if more, is := err.(*TooManyError); is {
		return &WrongTypeError{more.Pointer}
	}
	if err == nil && !null && n < len(elements) {
		return &WrongTypeError{d.StackPointer()}
	}
	return err
}

func bounded[T any](d *jsontext.Decoder, list *[]T, most int, read func(*jsontext.Decoder, *T) error) error {
	if d.PeekKind() == 'n' {
		*list = nil
	} else if *list = (*list)[:0]; *list == nil {
		*list = make([]T, 0, 4) // most have few elements
	}
	return Elements(d, most, func() error {
		*list = append(*list, *new(T))
		return read(d, &(*list)[len(*list)-1])
	})
}

// Elements reads an array of a limited number of elements: element reads each. Null has none.
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

// Map reads an object with any names. Null is nil.
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
	value, err := d.ReadValue() // faster than a token
	if err != nil {
		return err
	}
	if *s = ""; value[0] == '"' {
		*s = T(Name(value))
	}
	return nil
}

// Strings reads a list of strings.
func Strings(d *jsontext.Decoder, list *[]string) error {
	return bounded(d, list, MaxStrings, String[string])
}

// Repeated reads lists of strings of which many are the same byte for byte. Equal lists share one
// slice, so no caller may write to it.
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

// Bool reads a boolean. Null is false.
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

// Int reads an integer in the type's range. Null is 0.
func Int[T ~int | ~int64](d *jsontext.Decoder, n *T) error {
	return number(d, func(text string) (err error) {
		value, err := strconv.ParseInt(text, 10, 64)
		if *n = T(value); err == nil && int64(*n) != value {
			err = strconv.ErrRange
		}
		return err
	})
}

// Uint32 reads an unsigned integer of 32 bits. Null is 0.
func Uint32[T ~uint32](d *jsontext.Decoder, n *T) error {
	return number(d, func(text string) error {
		value, err := strconv.ParseUint(text, 10, 32)
		*n = T(value)
		return err
	})
}

// Uint64 reads an unsigned integer of 64 bits. Null is 0.
func Uint64[T ~uint64](d *jsontext.Decoder, n *T) error {
	return number(d, func(text string) error {
		value, err := strconv.ParseUint(text, 10, 64)
		*n = T(value)
		return err
	})
}

func number(d *jsontext.Decoder, parse func(text string) error) error {
	switch d.PeekKind() {
	case '0', 'n', 0:
	default:
		return wrong(d)
	}
	value, err := d.ReadValue()
	if err != nil {
		return err
	}
	text := "0"
	if value[0] != 'n' {
		text = string(value)
	}
	if parse(text) != nil {
		return &WrongTypeError{d.StackPointer()}
	}
	return nil
}

// Version reads an object's member "version" alone.
func Version(d *jsontext.Decoder, version *int) error {
	return Object(d, func(name []byte) error {
		if string(name) == "version" {
			return Int(d, version)
		}
		return d.SkipValue()
	})
}

// Text reads a string that its type parses. Null leaves the value unchanged: use it for new values.
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

// Time reads an RFC 3339 time as strictly as the library. Null is the zero time.
func Time(d *jsontext.Decoder, t *time.Time) error {
	value, err := d.ReadValue()
	if err != nil {
		return err
	}
	switch value.Kind() {
	case 'n':
		*t = time.Time{}
		return nil
	case '"':
	default:
		return &WrongTypeError{d.StackPointer()}
	}
	if isUTC(value) {
		*t, err = time.Parse(time.RFC3339, string(value[1:len(value)-1]))
	} else {
		*t, err = strictTime(Name(value))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", d.StackPointer(), err)
	}
	return nil
}

// strictTime parses a time in any form. Package time accepts more than RFC 3339
// (https://go.dev/issue/54580), and the library does not.
func strictTime(text []byte) (t time.Time, err error) {
	if err := t.UnmarshalText(text); err != nil {
		return t, err
	}
	const date, second, zone = len("2006-01-02T"), len("2006-01-02T15:04:05"), len("+07:00")
	wrong := text[date+1] == ':' || text[second] == ','
	if !bytes.HasSuffix(text, []byte("Z")) {
		offset := string(text[len(text)-zone:])
		wrong = wrong || offset[1:3] >= "24" || offset[4:] >= "60"
	}
	if wrong {
		return t, fmt.Errorf("%q is not in the form of RFC 3339", text)
	}
	return t, nil
}

// isUTC reports whether a value is a string in the form of a time in UTC, with any digits.
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
