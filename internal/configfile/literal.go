package configfile

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

func splice(text []byte, from, to int, with string) []byte {
	return slices.Concat(text[:from], []byte(with), text[to:])
}

var bare = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func quoted(key string) string {
	if bare.MatchString(key) {
		return key
	}
	return Literal(key)
}

// Dotted is a path as a table's header writes it.
func Dotted(path []string) string {
	names := make([]string, len(path))
	for i, name := range path {
		names[i] = quoted(name)
	}
	return strings.Join(names, ".")
}

// Literal is a value in TOML. A string of JSON is a string of TOML.
func Literal(value any) string {
	switch v := value.(type) {
	case string:
		text, _ := jsontext.AppendQuote(nil, v)
		return string(text)
	case []string:
		return Literal(plain(v))
	case []any:
		items := make([]string, len(v))
		for i, item := range v {
			items[i] = Literal(item)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case map[string]any:
		var items []string
		for _, key := range sortedKeys(v) {
			items = append(items, quoted(key)+" = "+Literal(v[key]))
		}
		return "{ " + strings.Join(items, ", ") + " }"
	}
	return fmt.Sprint(value)
}

// Sections is a table in TOML, with the tables below it.
func Sections(path []string, tree map[string]any) string {
	var keys, tables string
	for _, name := range sortedKeys(tree) {
		if below, isTable := tree[name].(map[string]any); isTable {
			tables += Sections(slices.Concat(path, []string{name}), below)
			continue
		}
		keys += quoted(name) + " = " + Literal(tree[name]) + "\n"
	}
	if keys == "" && tables != "" {
		return tables
	}
	return "\n[" + Dotted(path) + "]\n" + keys + tables
}
