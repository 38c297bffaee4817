package verdict

import (
	"encoding/json"
	"slices"
	"strings"
)

// Shrink drops what can be dropped of a config.json while still says that it shows the same.
func Shrink(config []byte, still func([]byte) bool) []byte {
	var tree any
	if json.Unmarshal(config, &tree) != nil {
		return config
	}
	if text, _ := json.Marshal(tree); !still(text) {
		return config // it depends on how it is written
	}
	for shrunk := true; shrunk; {
		shrunk = shrinkOnce(&tree, func() bool {
			text, _ := json.Marshal(tree)
			return still(text)
		})
	}
	text, _ := json.Marshal(tree)
	return text
}

// shrinkOnce drops fields and elements of a value, then of what is in it.
func shrinkOnce(value *any, still func() bool) (shrunk bool) {
	switch v := (*value).(type) {
	case map[string]any:
		for _, name := range sortedNames(v) {
			old := v[name]
			delete(v, name)
			if still() {
				shrunk = true
				continue
			}
			v[name] = old
			if shrinkOnce(&old, func() bool { v[name] = old; return still() }) {
				shrunk = true
			}
			v[name] = old
		}
	case []any:
		for i := len(v) - 1; i >= 0; i-- {
			*value = slices.Delete(slices.Clone(v), i, i+1)
			if still() {
				v, shrunk = (*value).([]any), true
				continue
			}
			*value = v
			if element := v[i]; shrinkOnce(&element, func() bool { v[i] = element; return still() }) {
				v[i], shrunk = element, true
			} else {
				v[i] = element
			}
		}
		*value = v
	}
	return shrunk
}

func sortedNames(object map[string]any) []string {
	var names []string
	for name := range object {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// ShrinkLines drops lines of a text while still says that it shows the same.
func ShrinkLines(text string, still func(string) bool) string {
	lines := strings.SplitAfter(text, "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		fewer := slices.Delete(slices.Clone(lines), i, i+1)
		if still(strings.Join(fewer, "")) {
			lines = fewer
		}
	}
	return strings.Join(lines, "")
}
