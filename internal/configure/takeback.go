package configure

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// parse reads a file of an engine: JSON where its name says so, else TOML.
func parse(path string, text []byte) (document, map[string]any, error) {
	if strings.HasSuffix(path, ".json") {
		d, err := parseJSON(text)
		if err != nil {
			return nil, nil, err
		}
		return d, d.tree, nil
	}
	d, err := parseTOML(text)
	if err != nil {
		return nil, nil, err
	}
	return d, d.tree, nil
}

// isTemplate reports whether a file is one that only its reader makes TOML of.
func isTemplate(path string) bool { return strings.HasSuffix(path, ".tmpl") }

// takeBack takes one change out of a file that another program has written anew since, so that no line is where it was: each
// key that led from before to after is led back, unless somebody has set it otherwise. It reports false where a text cannot
// be read or edited.
func takeBack(path string, now, after, before []byte) ([]byte, bool) {
	_, from, err := parse(path, after)
	if err != nil {
		return nil, false
	}
	_, to, err := parse(path, before)
	if err != nil {
		return nil, false
	}
	d, _, err := parse(path, now)
	if err != nil || lead(d, nil, from, to) != nil {
		return nil, false
	}
	return d.bytes(), true
}

// lead changes every key of a document in which two trees differ, as far as it is as in the first, to what it is in the second.
func lead(d document, path []string, from, to map[string]any) error {
	names := slices.Sorted(maps.Keys(from))
	for name := range to {
		if _, found := from[name]; !found {
			names = append(names, name)
		}
	}
	for _, name := range names {
		at := slices.Concat(path, []string{name})
		is, found := d.get(at...)
		ours, had := from[name]
		theirs, wanted := to[name]
		below, wasTable := ours.(map[string]any)
		above, isTable := theirs.(map[string]any)
		var err error
		switch {
		case reflect.DeepEqual(ours, theirs) && had == wanted:
		case name == Handler && wasTable && !wanted: // ours with whatever has been added to it
			err = d.unset(at...)
		case wasTable && (isTable || !wanted):
			if err = lead(d, at, below, above); err == nil && !wanted {
				err = unsetEmpty(d, at)
			}
		case found != had: // somebody has taken it out, or has put it there again
		case !reflect.DeepEqual(is, ours):
			err = leadList(d, at, is, ours, theirs)
		case wanted:
			err = d.set(theirs, at...)
		default:
			err = d.unset(at...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leadList takes the items of ours out of a list that somebody has changed too.
func leadList(d document, path []string, is, ours, theirs any) error {
	now, isList := is.([]any)
	added, wasList := ours.([]any)
	kept, _ := theirs.([]any)
	if !isList || !wasList {
		return nil
	}
	has := func(list []any, item any) bool {
		return slices.ContainsFunc(list, func(i any) bool { return reflect.DeepEqual(i, item) })
	}
	left := slices.DeleteFunc(slices.Clone(now), func(i any) bool { return has(added, i) && !has(kept, i) })
	if len(left) == len(now) {
		return nil
	}
	return d.set(left, path...)
}

// unsetEmpty takes out a table of which nothing is left.
func unsetEmpty(d document, path []string) error {
	if v, _ := d.get(path...); reflect.DeepEqual(v, map[string]any{}) {
		return d.unset(path...)
	}
	return nil
}

// defaultHandlers are where a file has its engine's handlers, and the name of the default one beside them.
var defaultHandlers = []struct {
	table     []string
	byDefault string
}{
	{nil, "default-runtime"},
	{[]string{"plugins", criPlugin, "containerd"}, "default_runtime_name"},
	{[]string{"plugins", criRuntimePlugin, "containerd"}, "default_runtime_name"},
	{[]string{"crio", "runtime"}, "default_runtime"},
}

// withoutGoneDefault is a file that others have changed, without a default handler that it had before and whose definition
// somebody has taken out since, as NVIDIA's toolkit does when it is removed: with it no engine starts.
func withoutGoneDefault(path string, now, before []byte) []byte {
	_, had, errBefore := parse(path, before)
	d, has, err := parse(path, now)
	if err != nil || errBefore != nil {
		return now
	}
	for _, h := range defaultHandlers {
		at := slices.Concat(h.table, []string{h.byDefault})
		name := text(has, at...)
		handler := slices.Concat(h.table, []string{"runtimes", name})
		_, defined := lookup(has, handler)
		if _, was := lookup(had, handler); name != "" && was && !defined && d.unset(at...) == nil {
			now = d.bytes()
		}
	}
	return now
}
