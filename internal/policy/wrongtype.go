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

// errWrongType is the error for a value of another type than its key's.
var errWrongType = errors.New("it is of another type")

// decode parses TOML into a policy. The library panics on a date where it needs another type
// (go-toml 2.2.4). That must only be an error: a container that reaches no GPU starts with the
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

// wrongTypeErrors are the beginnings of the library's errors for a value of another type than its
// key's. Those errors name fields of Go.
var wrongTypeErrors = []string{"cannot decode TOML ", "cannot store ", "cannot assign ",
	"float cannot be assigned ",
	"unhandled kv part", "couldn't parse decimal number", errWrongType.Error(),
	"incomplete number", "expected value", "expected '", "unexpected character"}

// typeNames are the types of a value in the file, by the library's words.
var typeNames = map[string]string{"integer": "a number", "float": "a number with a fraction",
	"string": "a string", "boolean": "true or false", "array": "a list", "table": "a table"}

// explainWrongType rewords a library error for a value of the wrong type: it says what the key
// needs. It returns other errors unchanged.
func explainWrongType(key, why string) (string, string) {
	if !slices.ContainsFunc(wrongTypeErrors, func(begin string) bool {
		return strings.HasPrefix(why, begin)
	}) {
		return key, why
	}
	known, wants := wanted(key)
	if wants == "" {
		return key, why
	}
	kind, _ := strings.CutPrefix(why, "cannot decode TOML ")
	kind, _, _ = strings.Cut(kind, " ")
	if is := typeNames[kind]; is != "" {
		wants += ", not " + is
	}
	return known, "want " + wants
}

// wanted returns what the value of a key must be, or that of the longest part of the key which is
// one; "" without any.
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
		wants = tomlForm(t, known)
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

// tomlForm says how values of a type are written.
func tomlForm(t reflect.Type, key string) string {
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
