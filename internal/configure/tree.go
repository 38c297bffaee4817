package configure

import (
	"maps"
	"slices"
)

// plain is a value as the libraries give it.
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

// copyTree copies the tables of a tree; their values are never changed in place.
func copyTree(tree map[string]any) map[string]any {
	out := maps.Clone(tree)
	for key, v := range out {
		if table, isTable := v.(map[string]any); isTable {
			out[key] = copyTree(table)
		}
	}
	return out
}

// put sets a value in a tree and makes the tables that it needs. It reports whether it could.
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

// without is a tree without a key, and without the tables above it that hold nothing else.
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

// merge lays one tree over another as engines do with drop-in files: tables key by key, anything else whole.
func merge(under, over map[string]any) map[string]any {
	out := copyTree(under)
	for key, v := range over {
		below, isTable := v.(map[string]any)
		present, wasTable := out[key].(map[string]any)
		if isTable && wasTable {
			v = merge(present, below)
		}
		out[key] = v
	}
	return out
}

// table gives the table at a path, nil where there is none.
func table(tree map[string]any, path ...string) map[string]any {
	v, _ := lookup(tree, path)
	t, _ := v.(map[string]any)
	return t
}

// text gives the string at a path, "" where there is none.
func text(tree map[string]any, path ...string) string {
	v, _ := lookup(tree, path)
	s, _ := v.(string)
	return s
}

// texts gives the strings of a list at a path; anything else in it (Podman's {append = true}) is left out. found tells
// whether there is a list at all.
func texts(tree map[string]any, path ...string) (list []string, found bool) {
	v, _ := lookup(tree, path)
	items, found := v.([]any)
	for _, item := range items {
		if s, isText := item.(string); isText {
			list = append(list, s)
		}
	}
	return list, found
}

// union appends what is missing.
func union(list []string, more ...string) []string {
	out := slices.Clone(list)
	for _, item := range more {
		if !slices.Contains(out, item) {
			out = append(out, item)
		}
	}
	return out
}
