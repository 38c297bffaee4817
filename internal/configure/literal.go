package configure

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
	return literal(key)
}

// dotted is a path as a table's header writes it.
func dotted(path []string) string {
	names := make([]string, len(path))
	for i, name := range path {
		names[i] = quoted(name)
	}
	return strings.Join(names, ".")
}

// literal is a value in TOML. A string of JSON is a string of TOML.
func literal(value any) string {
	switch v := value.(type) {
	case string:
		text, _ := jsontext.AppendQuote(nil, v)
		return string(text)
	case []string:
		return literal(plain(v))
	case []any:
		items := make([]string, len(v))
		for i, item := range v {
			items[i] = literal(item)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case map[string]any:
		var items []string
		for _, key := range sortedKeys(v) {
			items = append(items, quoted(key)+" = "+literal(v[key]))
		}
		return "{ " + strings.Join(items, ", ") + " }"
	}
	return fmt.Sprint(value)
}
