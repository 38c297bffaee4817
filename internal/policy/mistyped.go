package policy

import (
	"bytes"
	"encoding"
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// errWrongType is a value of another type than its key's.
var errWrongType = errors.New("it is of another type")

// decode reads TOML. The library falls over a date where it wants something else (go-toml 2.2.4),
// and what cannot be read must fail and no more: a container that reaches no GPU starts by the
// defaults.
func decode(text []byte, into *grant.Policy, strict bool) (err error) {
	defer func() {
		if recover() != nil {
			err = errWrongType
		}
	}()
	d := toml.NewDecoder(bytes.NewReader(text))
	if strict {
		d.DisallowUnknownFields()
	}
	return d.Decode(into)
}

// mistyped are the beginnings of what the library says of a value of another type than its key's.
// It names fields of Go.
var mistyped = []string{"cannot decode TOML ", "cannot store ", "cannot assign ", "float cannot be assigned ",
	"unhandled kv part", "couldn't parse decimal number", errWrongType.Error(),
	"incomplete number", "expected value", "expected '", "unexpected character"}

// given is what stands in the file, by the library's words.
var given = map[string]string{"integer": "a number", "float": "a number with a fraction",
	"string": "a string", "boolean": "true or false", "array": "a list", "table": "a table"}

// inWords says what the library found wrong with a key: of a value's type what the key wants,
// everything else as it is.
func inWords(key, why string) (string, string) {
	if !slices.ContainsFunc(mistyped, func(begin string) bool { return strings.HasPrefix(why, begin) }) {
		return key, why
	}
	known, wants := wanted(key)
	if wants == "" {
		return key, why
	}
	kind, _ := strings.CutPrefix(why, "cannot decode TOML ")
	kind, _, _ = strings.Cut(kind, " ")
	if is := given[kind]; is != "" {
		wants += ", not " + is
	}
	return known, "want " + wants
}

// wanted is what a key's value has to be, or that of the longest part of the key which is one; ""
// without any.
func wanted(key string) (known, wants string) {
	t := reflect.TypeFor[grant.Policy]()
	for part := range strings.SplitSeq(key, ".") {
		if t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			break
		}
		field, found := fieldOf(t, part)
		if !found {
			break
		}
		t, known = field.Type, strings.TrimPrefix(known+"."+part, ".")
		wants = inTOML(t, known)
	}
	return known, wants
}

func fieldOf(t reflect.Type, key string) (reflect.StructField, bool) {
	for field := range t.Fields() {
		if field.Tag.Get("toml") == key {
			return field, true
		}
	}
	return reflect.StructField{}, false
}

// inTOML is how values of a type are written.
func inTOML(t reflect.Type, key string) string {
	switch {
	case reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return "a string in quotes"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return "tables, each as [[" + key + "]]"
	case t.Kind() == reflect.Slice:
		return "a list of strings"
	case t.Kind() == reflect.Struct:
		return "a table, as [" + key + "]"
	case t.Kind() == reflect.Int:
		return "a whole number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	}
	return "a string in quotes"
}
