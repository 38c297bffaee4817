package tokens

import (
	"bytes"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Writer writes one JSON value. Its first error stands until End.
type Writer struct {
	out bytes.Buffer
	e   *jsontext.Encoder
	err error
}

// NewWriter makes one; jsontext.WithIndent has it write a file for people.
func NewWriter(options ...jsontext.Options) *Writer {
	w := &Writer{}
	w.e = jsontext.NewEncoder(&w.out, options...)
	return w
}

// End gives what was written, or why it could not be.
func (w *Writer) End() ([]byte, error) {
	return bytes.TrimSuffix(w.out.Bytes(), []byte("\n")), w.err
}

func (w *Writer) token(t jsontext.Token) {
	if w.err == nil {
		w.err = w.e.WriteToken(t)
	}
}

// Name begins a member of an object.
func (w *Writer) Name(name string) *Writer {
	w.token(jsontext.String(name))
	return w
}

// Object writes one whose members fill in.
func (w *Writer) Object(members func()) {
	w.token(jsontext.BeginObject)
	members()
	w.token(jsontext.EndObject)
}

// Array writes one whose elements fill in.
func (w *Writer) Array(elements func()) {
	w.token(jsontext.BeginArray)
	elements()
	w.token(jsontext.EndArray)
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
func (w *Writer) String(s string) { w.token(jsontext.String(s)) }
func (w *Writer) Int(n int64)     { w.token(jsontext.Int(n)) }
func (w *Writer) Uint(n uint64)   { w.token(jsontext.Uint(n)) }
func (w *Writer) Float(n float64) { w.token(jsontext.Float(n)) }
func (w *Writer) Bool(b bool)     { w.token(jsontext.Bool(b)) }
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
