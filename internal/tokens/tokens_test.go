package tokens

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// all has a field of each kind.
type all struct {
	Alike   [][]string        `json:"alike"`
	String  string            `json:"string"`
	Bool    bool              `json:"bool"`
	Int     int               `json:"int"`
	Uint32  uint32            `json:"uint32"`
	Uint64  uint64            `json:"uint64"`
	Pointer *int64            `json:"pointer"`
	Strings []string          `json:"strings"`
	Map     map[string]string `json:"map"`
	Time    time.Time         `json:"time"`
	Text    text              `json:"text"`
}

// text is a type that parses its text.
type text string

func (v *text) UnmarshalText(b []byte) error {
	if *v = text(b); len(b) == 0 {
		return errors.New("it is empty")
	}
	return nil
}

func (a *all) read(d *jsontext.Decoder) error {
	return Object(d, func(name []byte) error {
		switch string(name) {
		case "alike":
			var alike Repeated
			return List(d, &a.Alike, alike.Strings)
		case "string":
			return String(d, &a.String)
		case "bool":
			return Bool(d, &a.Bool)
		case "int":
			return Int(d, &a.Int)
		case "uint32":
			return Uint32(d, &a.Uint32)
		case "uint64":
			return Uint64(d, &a.Uint64)
		case "pointer":
			return Pointer(d, &a.Pointer, Int[int64])
		case "strings":
			return Strings(d, &a.Strings)
		case "map":
			return Map(d, &a.Map, String[string])
		case "time":
			return Time(d, &a.Time)
		case "text":
			return Text(d, &a.Text)
		}
		return d.SkipValue()
	})
}

var texts = func() []string {
	texts := []string{"", " ", "null", "{}", " {} \n", "[]", "1", `"x"`, "{", "{}{}", "{} x", `{"a"`,
		`{"string":"a","string":"b"}`, `{"str\u0069ng":"x"}`, `{"\ud800":1}`,
		"{\"string\":\"\xff\"}", `{"map":{"a":"1","a":"2"}}`,
		`{"unknown":{"string":1},"bool":true}`, "\ufeff{}"}
	values := []string{"null", "true", "false", `""`, `"a\n\u0000\u2028"`, "0", "-0", "-1", "1.0", "1e3",
		"4294967295", "4294967296", "9223372036854775807", "9223372036854775808",
		"-9223372036854775808", "18446744073709551615", "18446744073709551616", "[]", `[null]`, `["a",1]`,
		`[["a"],["a"]]`, `[["a"],["a",1]]`, `[["a"],["\u0061"],null,[]]`, `[["a"],["a",1],["a",1]]`, "{}",
		`{"k":null}`, `{"k":1}`, `"2026-11-22T00:00:00Z"`, `"2026-11-22T0:00:00Z"`,
		`"2026-11-22T00:00:00,5Z"`, `"2026-11-22T00:00:00+24:00"`, `"2026-11-22T00:00:00-25:00"`,
		`"2026-11-22T00:00:00+01:60"`, `"2026-11-22t00:00:00z"`, `"2026-02-30T00:00:00Z"`,
		`"2026-11-22T00:00:00.5Z"`, `"2026-11-22T00:00:00.Z"`, `"2026-11-22T00:00:00.1234567891Z"`,
		`"2026-11-22T00:00:00..5Z"`, `"2026-11-22T00:00:00\u005a"`, `"2026-11-22T24:00:00Z"`,
		`"2026-11-22T23:59:60Z"`, `"12026-11-22T00:00:00Z"`, "[", "{", "x"}
	typ := reflect.TypeFor[all]()
	for i := range typ.NumField() {
		for _, value := range values {
			texts = append(texts, `{"`+typ.Field(i).Tag.Get("json")+`":`+value+`}`)
		}
	}
	return texts
}()

func TestReadingEqualsTheJSONLibrary(t *testing.T) {
	for _, text := range texts {
		same(t, []byte(text))
	}
}

func FuzzReading(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { same(t, text) })
}

func same(t *testing.T, text []byte) {
	t.Helper()
	var got, want all
	ours, theirs := Whole(text, got.read), json.Unmarshal(text, &want)
	if (ours == nil) != (theirs == nil) || ours == nil && !reflect.DeepEqual(got, want) {
		t.Errorf("%q: %+v (%v), by the library %+v (%v)", text, got, ours, want, theirs)
	}
}

func TestPointerToAWrongType(t *testing.T) {
	for text, pointer := range map[string]string{`{"string":1}`: "/string",
		`{"strings":["a",{}]}`: "/strings/1", `{"map":{"a/b":[1,[2]]}}`: "/map/a~1b",
		`{"int":1.5}`: "/int", `7`: ""} {
		var a all
		err := Whole([]byte(text), a.read)
		if wrong, ok := err.(*WrongTypeError); !ok || string(wrong.Pointer) != pointer {
			t.Errorf("%s: %v, want %q", text, err, pointer)
		}
	}
	for text, pointer := range map[string]string{`[["a"],["a"],["a",1]]`: "/2/1",
		`[["a"],[[]],["a"]]`: "/1/0", `[["a"],"a"]`: "/1"} {
		var lists [][]string
		var alike Repeated
		err := Whole([]byte(text), func(d *jsontext.Decoder) error { return List(d, &lists, alike.Strings) })
		if wrong, ok := err.(*WrongTypeError); !ok || string(wrong.Pointer) != pointer {
			t.Errorf("%s: %v, want %q", text, err, pointer)
		}
	}
}

func TestWriter(t *testing.T) {
	w := NewWriter()
	w.Object(func() {
		w.Name("a").Array(func() {
			w.Int(-1)
			w.Uint(math.MaxUint64)
			w.Float(0.184)
			w.Bool(true)
			w.String("\"\u2028\x01")
			w.Time(time.Unix(0, 5).UTC())
		})
		w.Words("b", "", "c", "d")
		w.Name("e").Strings(nil)
	})
	want := `{"a":[-1,18446744073709551615,0.184,true,"\"` + "\u2028" +
		`\u0001","1970-01-01T00:00:00.000000005Z"],"c":"d","e":[]}`
	if got, err := w.End(); err != nil || string(got) != want {
		t.Errorf("%v\ngot  %s\nwant %s", err, got, want)
	}
	for _, value := range []string{`1`, `""`, `{}`, `[]`, `{"a":[]}`,
		`[{},[],[[]],{"a":{"b":" ","c:":[1,":","{"]}}]`} {
		indented := jsontext.Value(value)
		if err := indented.Indent(jsontext.WithIndent("  ")); err != nil {
			t.Fatal(err)
		}
		w := NewIndented()
		again(w, jsontext.NewDecoder(strings.NewReader(value)))
		if got, err := w.End(); err != nil || string(got) != string(indented) {
			t.Errorf("%v\ngot  %s\nwant %s", err, got, indented)
		}
	}
	w = NewWriter()
	w.Array(func() {
		w.Raw(jsontext.Value("{}"))
		w.Raw(jsontext.Value("[1]"))
	})
	if got, err := w.End(); err != nil || string(got) != "[{},[1]]" {
		t.Errorf("%s, %v", got, err)
	}
	w = NewWriter()
	w.Object(func() { w.Name("a").String("\xff") })
	if got, err := w.End(); err == nil {
		t.Errorf("invalid UTF-8 is written: %s", got)
	}
	w = NewWriter()
	w.Object(func() { w.Name("t").Time(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)) })
	if _, err := w.End(); err == nil || !strings.Contains(err.Error(), "year") {
		t.Errorf("a year without a text: %v", err)
	}
}

// again writes a value as it was read.
func again(w *Writer, d *jsontext.Decoder) {
	token, _ := d.ReadToken()
	switch token.Kind() {
	case '{':
		w.Object(func() {
			for d.PeekKind() != '}' {
				name, _ := d.ReadToken()
				again(w.Name(name.String()), d)
			}
		})
		_, _ = d.ReadToken()
	case '[':
		w.Array(func() {
			for d.PeekKind() != ']' {
				again(w, d)
			}
		})
		_, _ = d.ReadToken()
	case '0':
		n, _ := token.Int()
		w.Int(n)
	default:
		w.String(token.String())
	}
}
