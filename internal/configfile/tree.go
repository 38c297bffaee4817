package configfile

import (
	"maps"
	"slices"
)

// plain is a value with the types that the libraries return.
func plain(value any) any {
	switch v := value.(type) {
	case []string:
		items := make([]any, len(v))
		for i, item := range v {
			items[i] = item
		}
		return items
	case int:
		return int64(v)
	case map[string]any:
		out := map[string]any{}
		for key, item := range v {
			out[key] = plain(item)
		}
		return out
	}
	return value
}

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

// copyTree copies the tables of a tree. Their values are never changed in place.
func copyTree(tree map[string]any) map[string]any {
	out := maps.Clone(tree)
	for key, v := range out {
		if table, isTable := v.(map[string]any); isTable {
			out[key] = copyTree(table)
		}
	}
	return out
}

// put sets a value in a tree and makes the tables that it needs. It reports whether that worked.
func put(tree map[string]any, value any, path []string) bool {
	for _, name := range path[:len(path)-1] {
		if _, found := tree[name]; !found {
			tree[name] = map[string]any{}
		}
		below, isTable := tree[name].(map[string]any)
		if !isTable {
			return false
		}
		tree = below
	}
	tree[path[len(path)-1]] = value
	return true
}

// without is a tree without a key, and without the tables above it that would be empty.
func without(tree map[string]any, path []string) map[string]any {
	out := maps.Clone(tree)
	below, isTable := out[path[0]].(map[string]any)
	switch {
	case len(path) == 1:
		delete(out, path[0])
	case isTable:
		if below = without(below, path[1:]); len(below) > 0 {
			out[path[0]] = below
		} else {
			delete(out, path[0])
		}
	}
	return out
}

// Merge puts one tree over another, as engines do with drop-in files. Tables are merged key by key;
// any other value is replaced.
func Merge(under, over map[string]any) map[string]any {
	out := copyTree(under)
	for key, v := range over {
		below, isTable := v.(map[string]any)
		present, wasTable := out[key].(map[string]any)
		if isTable && wasTable {
			v = Merge(present, below)
		}
		out[key] = v
	}
	return out
}

// Table is the table at a path; nil if there is none.
func Table(tree map[string]any, path ...string) map[string]any {
	v, _ := Lookup(tree, path)
	t, _ := v.(map[string]any)
	return t
}

// Text is the string at a path; "" if there is none.
func Text(tree map[string]any, path ...string) string {
	v, _ := Lookup(tree, path)
	s, _ := v.(string)
	return s
}

// Texts are the strings of the list at a path. It leaves out other items, such as Podman's {append
// = true}. found reports whether there is a list.
func Texts(tree map[string]any, path ...string) (list []string, found bool) {
	v, _ := Lookup(tree, path)
	items, found := v.([]any)
	for _, item := range items {
		if s, isText := item.(string); isText {
			list = append(list, s)
		}
	}
	return list, found
}

// Union is list with those of more that it lacks.
func Union(list []string, more ...string) []string {
	out := slices.Clone(list)
	for _, item := range more {
		if !slices.Contains(out, item) {
			out = append(out, item)
		}
	}
	return out
}
