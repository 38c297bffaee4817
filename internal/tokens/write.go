package tokens

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Writer writes one JSON value. It keeps its first error until End. The callers' calls determine
// the structure; the library formats the strings.
type Writer struct {
	out    []byte
	indent string // of one level; "": a value without white space
	depth  int
	err    error
}

// NewWriter returns a writer for text that programs read.
func NewWriter() *Writer { return &Writer{} }

// NewIndented returns a writer for text that people read, with the library's spaces and line ends.
func NewIndented() *Writer { return &Writer{indent: "  "} }

// End returns what was written, or the first error.
func (w *Writer) End() ([]byte, error) { return w.out, w.err }

// Err returns the first error so far, or nil.
func (w *Writer) Err() error { return w.err }

// Grow makes room for n more bytes.
func (w *Writer) Grow(n int) {
	if w.out == nil {
		w.out = make([]byte, 0, n) // unlike slices.Grow this touches no page before it is written to
		return
	}
	w.out = slices.Grow(w.out, n)
}

// Len is the number of bytes written.
func (w *Writer) Len() int { return len(w.out) }

// Since returns what was written after the first n bytes. It is valid until the next write.
func (w *Writer) Since(n int) []byte { return w.out[n:] }

// Cut removes what was written after the first n bytes: whole values, or a member's name with them.
func (w *Writer) Cut(n int) { w.out = w.out[:n] }

// Raw writes a value unchanged. It must be valid JSON, which the caller has read.
func (w *Writer) Raw(value jsontext.Value) {
	w.next()
	w.out = append(w.out, value...)
}

// Members writes the members of an object as the library would write them: what another program
// wrote gets this writer's spaces and line ends.
func (w *Writer) Members(object jsontext.Value) {
	if len(object) == 0 {
		return
	}
	err := Whole(object, w.members)
	if w.err == nil {
		w.err = err
	}
}

func (w *Writer) members(d *jsontext.Decoder) error {
	return Object(d, func(name []byte) error { return w.Name(string(name)).value(d) })
}

func (w *Writer) value(d *jsontext.Decoder) (err error) {
	switch d.PeekKind() {
	case '{':
		w.Object(func() { err = w.members(d) })
	case '[':
		w.Array(func() {
			err = Elements(d, math.MaxInt, func() error { return w.value(d) })
		})
	case '"':
		var text string
		err = String(d, &text)
		w.String(text)
	default:
		var value jsontext.Value
		value, err = d.ReadValue()
		w.Raw(value)
	}
	return err
}

// next writes the comma before a name or a value that is not the first. An open object, array or
// name ends in its own sign, a string in its quote.
func (w *Writer) next() {
	if len(w.out) == 0 {
		return
	}
	switch w.out[len(w.out)-1] {
	case ':', ' ': // the value of a name follows
		return
	case '{', '[':
	default:
		w.out = append(w.out, ',')
	}
	w.line()
}

// line begins a new line in indented text.
func (w *Writer) line() {
	if w.indent == "" {
		return
	}
	w.out = append(w.out, '\n')
	for range w.depth {
		w.out = append(w.out, w.indent...)
	}
}

// Name begins a member of an object.
func (w *Writer) Name(name string) *Writer {
	w.String(name)
	return w.colon()
}

func (w *Writer) colon() *Writer {
	w.out = append(w.out, ':')
	if w.indent != "" {
		w.out = append(w.out, ' ')
	}
	return w
}

// Member begins a member of an object, with a quoted name from a text.
func (w *Writer) Member(quoted jsontext.Value) *Writer {
	w.Raw(quoted)
	return w.colon()
}

// Object writes an object; members writes its members.
func (w *Writer) Object(members func()) { w.within('{', members, '}') }

// Array writes an array; elements writes its elements.
func (w *Writer) Array(elements func()) { w.within('[', elements, ']') }

func (w *Writer) within(begin byte, fill func(), end byte) {
	w.next()
	w.out = append(w.out, begin)
	w.depth++
	empty := len(w.out)
	fill()
	w.depth--
	if len(w.out) > empty {
		w.line()
	}
	w.out = append(w.out, end)
}

// Strings writes an array of strings.
func (w *Writer) Strings(list []string) {
	w.Array(func() {
		for _, s := range list {
			w.String(s)
		}
	})
}

// String, Int, Uint, Float, Bool and Time each write a value. A time is in RFC 3339 format.
func (w *Writer) String(s string) {
	w.next()
	out, err := jsontext.AppendQuote(w.out, s)
	if w.out = out; w.err == nil {
		w.err = err
	}
}

func (w *Writer) Int(n int64) {
	w.next()
	w.out = strconv.AppendInt(w.out, n, 10)
}

func (w *Writer) Uint(n uint64) {
	w.next()
	w.out = strconv.AppendUint(w.out, n, 10)
}

func (w *Writer) Float(n float64) {
	w.next()
	w.out = append(w.out, jsontext.Float(n).String()...)
}

func (w *Writer) Bool(b bool) {
	w.next()
	w.out = strconv.AppendBool(w.out, b)
}

func (w *Writer) Time(t time.Time) {
	text, err := t.MarshalText()
	if w.err == nil {
		w.err = err
	}
	w.String(string(text))
}

// TimeUnlessZero writes a member with a time that is not zero.
func (w *Writer) TimeUnlessZero(name string, t time.Time) {
	if !t.IsZero() {
		w.Name(name).Time(t)
	}
}

// Words writes the string members that are not empty: pairs of a name and a value, in order.
func (w *Writer) Words(pairs ...string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			w.Name(pairs[i]).String(pairs[i+1])
		}
	}
}

// WriteMap writes an object of a map's members, sorted by name; value writes each value.
func WriteMap[T any](w *Writer, m map[string]T, value func(T)) {
	w.Object(func() {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			w.Name(name)
			value(m[name])
		}
	})
}
