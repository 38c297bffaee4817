package tokens

import (
	"errors"
	"fmt"
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
	Array   [2]int            `json:"array"`
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
		case "array":
			return Array(d, a.Array[:], Int[int])
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
		`"2026-11-22T23:59:60Z"`,
		`"2026-11-22T00:00:00+01:30"`, `"2026-11-22T00:00:00-00:00"`,
		`"2026-11-22T00:00:00.5-23:59"`, `"2026-11-22T00:00:00+2:00"`, `"2026-11-22T0:00:00+01:00"`,
		`"2026-11-22T00:00:00,5+01:00"`, `"2026-11-22T00:00:00+01:00\u0000"`,
		`"\u0032026-11-22T00:00:00+01:00"`, `"2026-11-22 00:00:00+01:00"`, `"0000-01-01T00:00:00+00:01"`,
		`"12026-11-22T00:00:00Z"`, "[", "{", "x"}
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

// TestDuplicateNames: where a caller allows them, the last value counts, null too.
func TestDuplicateNames(t *testing.T) {
	duplicates := jsontext.AllowDuplicateNames(true)
	typ := reflect.TypeFor[all]()
	for i := range typ.NumField() {
		name := typ.Field(i).Tag.Get("json")
		if name == "text" || name == "array" {
			continue // of new values only
		}
		for _, first := range []string{`"a"`, `true`, `7`, `["a","b"]`, `[["a"]]`, `{"a":"b"}`,
			`"2026-11-22T00:00:00Z"`} {
			for _, second := range []string{first, "null", `{"c":"d"}`, `["c"]`} {
				text := fmt.Appendf(nil, `{"%[1]s":%[2]s,"%[1]s":%[3]s}`, name, first, second)
				var got, want all
				ours, theirs := Whole(text, got.read, duplicates), json.Unmarshal(text, &want, duplicates)
				if (ours == nil) != (theirs == nil) || ours == nil && !reflect.DeepEqual(got, want) {
					t.Errorf("%s: %+v (%v), by the library %+v (%v)", text, got, ours, want, theirs)
				}
			}
		}
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

func TestVersionAlone(t *testing.T) {
	for _, text := range append(texts, `{"version":3}`, `{"x":{"version":1},"version":2,"y":[]}`,
		`{"Version":1}`, `{"version":1,"version":2}`, `{"version":null}`, `{"version":"1"}`,
		`{"version":2,"x":`) {
		got, want := 0, struct {
			Version int `json:"version"`
		}{}
		ours := Whole([]byte(text), func(d *jsontext.Decoder) error { return Version(d, &got) })
		theirs := json.Unmarshal([]byte(text), &want)
		if (ours == nil) != (theirs == nil) || got != want.Version {
			t.Errorf("%q: %d (%v), by the library %d (%v)", text, got, ours, want.Version, theirs)
		}
	}
}

func TestPointerToAWrongType(t *testing.T) {
	for text, pointer := range map[string]string{`{"string":1}`: "/string",
		`{"strings":["a",{}]}`: "/strings/1", `{"map":{"a/b":[1,[2]]}}`: "/map/a~1b",
		`{"int":1.5}`: "/int", `{"time":7}`: "/time", `{"array":[1,2,3]}`: "/array",
		`{"array":[1]}`: "/array", `{"array":[1,true]}`: "/array/1", `7`: ""} {
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
		if err := Whole([]byte(value), w.value); err != nil {
			t.Error(err)
		}
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
	w.Object(func() {
		w.TimeUnlessZero("a", time.Time{})
		w.TimeUnlessZero("b", time.Unix(5, 0).UTC())
	})
	if got, err := w.End(); err != nil || string(got) != `{"b":"1970-01-01T00:00:05Z"}` {
		t.Errorf("%s, %v", got, err)
	}
	w = NewWriter()
	w.Object(func() { w.Name("t").Time(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)) })
	if _, err := w.End(); err == nil || !strings.Contains(err.Error(), "year") {
		t.Errorf("a year without a text: %v", err)
	}
}

// TestMembersAreWrittenAsTheLibraryWritesThem: members that another program wrote, in the JSON
// library's form.
func TestMembersAreWrittenAsTheLibraryWritesThem(t *testing.T) {
	type document struct {
		Before int
		Others jsontext.Value `json:",embed"`
	}
	for _, others := range []string{``, `{}`, `{"a":1}`,
		` { "\u0061\/\n\u2028" : [ 1.50E+3 , -0, "\u00e9\ud83d\ude00" ] } `,
		`{"a":{"b":[[],{},null,true,false,[{"c":""}]]},"":0}`, `{"a":1,"a":2}`, `{"a":"\ud800"}`,
		"{\"\xff\":1}", `{"a":1`, `{"a"}`} {
		for _, w := range []*Writer{NewWriter(), NewIndented()} {
			value := document{1, jsontext.Value(others)}
			w.Object(func() {
				w.Name("Before").Int(1)
				w.Members(value.Others)
			})
			want, theirs := json.Marshal(value, jsontext.WithIndent(w.indent),
				jsontext.Multiline(w.indent != ""))
			got, ours := w.End()
			if (ours == nil) != (theirs == nil) || ours == nil && string(got) != string(want) {
				t.Errorf("%s\nwritten %s (%v)\nlibrary %s (%v)", others, got, ours, want, theirs)
			}
		}
	}
}

func TestMapsAreWrittenInOrder(t *testing.T) {
	for _, m := range []map[string]int{nil, {}, {"b": 1, "a": 2, "": 3, "\u2028": 4,
		"\U0001F600": 5, "\uffff": 6}} {
		w := NewWriter()
		WriteMap(w, m, func(n int) { w.Int(int64(n)) })
		want, _ := json.Marshal(m, json.Deterministic(true))
		if got, err := w.End(); err != nil || string(got) != string(want) {
			t.Errorf("%v\ngot  %s\nwant %s", err, got, want)
		}
	}
}

// TestBytesThatAreNotUTF8: each is read as the library reads it, also within a name or beside an
// escape.
func TestBytesThatAreNotUTF8(t *testing.T) {
	for _, text := range []string{"{\"string\":\"\xff\"}", "{\"map\":{\"\xff\xfe\":\"a\\n\xc3\"}}",
		"{\"map\":{\"\xff\":\"\",\"\xfe\":\"\"}}", `{"string":"\ud800"}`,
		"{\"string\":\"\xed\xa0\x80\\ud800\"}",
		"{\"unknown\":\"\xff\"}", "{\xff}", "\xff",
		"{\"string\":\"\xf0\x9f\x98", "{\"string\":\"\ufffd\"}"} {
		for _, duplicates := range []bool{false, true} {
			var got, want all
			ours := AnyUTF8([]byte(text), got.read, jsontext.AllowDuplicateNames(duplicates))
			theirs := json.Unmarshal([]byte(text), &want, jsontext.AllowInvalidUTF8(true),
				jsontext.AllowDuplicateNames(duplicates))
			if (ours == nil) != (theirs == nil) || ours == nil && !reflect.DeepEqual(got, want) {
				t.Errorf("%q: %+v (%v), by the library %+v (%v)", text, got, ours, want, theirs)
			}
		}
	}
}
