package tokens

import (
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Writer writes one JSON value. Its first error stands until End. What its users call makes the
// structure; the strings are the library's.
type Writer struct {
	out    []byte
	indent string // of a step; "" is a value without spaces
	depth  int
	err    error
}

// NewWriter makes one for programs.
func NewWriter() *Writer { return &Writer{} }

// NewIndented makes one for people, with the library's spaces and line ends.
func NewIndented() *Writer { return &Writer{indent: "  "} }

// End gives what was written, or why it could not be.
func (w *Writer) End() ([]byte, error) { return w.out, w.err }

// Err is why something could not be written, nil so far.
func (w *Writer) Err() error { return w.err }

// Grow makes room for so many more bytes.
func (w *Writer) Grow(n int) {
	if w.out == nil {
		w.out = make([]byte, 0, n) // of which no page is touched before it is written to, as slices.Grow does
		return
	}
	w.out = slices.Grow(w.out, n)
}

// Len is how much is written, in bytes.
func (w *Writer) Len() int { return len(w.out) }

// Since is what was written behind the first n bytes. It is valid until more is written.
func (w *Writer) Since(n int) []byte { return w.out[n:] }

// Cut takes back what was written behind the first n bytes: whole values, or the name of a member
// with them.
func (w *Writer) Cut(n int) { w.out = w.out[:n] }

// Raw writes a value as it stands: valid JSON, which the caller has read.
func (w *Writer) Raw(value jsontext.Value) {
	w.next()
	w.out = append(w.out, value...)
}

// next puts the comma before a name or a value that is not the first. What is open ends in its own
// sign, and a string in its quotes.
func (w *Writer) next() {
	if len(w.out) == 0 {
		return
	}
	switch w.out[len(w.out)-1] {
	case ':', ' ': // a name's value
		return
	case '{', '[':
	default:
		w.out = append(w.out, ',')
	}
	w.line()
}

// line begins a line, where there are any.
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

// Member begins a member of an object by a name as it stands in a text, in its quotes.
func (w *Writer) Member(quoted jsontext.Value) *Writer {
	w.Raw(quoted)
	return w.colon()
}

// Object writes one whose members fill in.
func (w *Writer) Object(members func()) { w.within('{', members, '}') }

// Array writes one whose elements fill in.
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

// String, Int, Uint, Float, Bool and Time write a value. A time is written as RFC 3339 has it.
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

// Words writes the members that have a value: pairs of a name and a value, in their order.
func (w *Writer) Words(pairs ...string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			w.Name(pairs[i]).String(pairs[i+1])
		}
	}
}
