package configure

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// parse reads an engine's file: as JSON if its name ends so, else as TOML.
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

// isTemplate reports whether a file is a template, which becomes TOML only when the engine's
// distribution expands it.
func isTemplate(path string) bool { return strings.HasSuffix(path, ".tmpl") }

// revertKeys takes one change out of a file that another program has written anew since, so that no
// line is where it was. Each key that the change set gets its old value, unless it was set
// otherwise since. It returns false if a text cannot be read or edited.
func revertKeys(path string, now, after, before []byte) ([]byte, bool) {
	_, from, err := parse(path, after)
	if err != nil {
		return nil, false
	}
	_, to, err := parse(path, before)
	if err != nil {
		return nil, false
	}
	d, _, err := parse(path, now)
	if err != nil || revertTree(d, nil, from, to) != nil {
		return nil, false
	}
	return d.bytes(), true
}

// revertTree changes the keys in which two trees differ to the value of the second. It leaves a key
// alone whose value is not that of the first.
func revertTree(d document, path []string, from, to map[string]any) error {
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
		case name == Handler && wasTable && !wanted:
			// gpuledger's table, with everything that was added to it
			err = d.unset(at...)
		case wasTable && (isTable || !wanted):
			if err = revertTree(d, at, below, above); err == nil && !wanted {
				err = unsetEmpty(d, at)
			}
		case found != had: // it was taken out or put there again since
		case !reflect.DeepEqual(is, ours):
			err = revertList(d, at, is, ours, theirs)
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

// revertList takes gpuledger's items out of a list that others have changed too.
func revertList(d document, path []string, is, ours, theirs any) error {
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

// unsetEmpty takes out a table if nothing is left in it.
func unsetEmpty(d document, path []string) error {
	if v, _ := d.get(path...); reflect.DeepEqual(v, map[string]any{}) {
		return d.unset(path...)
	}
	return nil
}

// handlerTables are the tables in which a file has its engine's handlers, and beside them the key
// for the default one.
var handlerTables = []struct {
	table     []string
	byDefault string
}{
	{nil, "default-runtime"},
	{[]string{"plugins", criPlugin, "containerd"}, "default_runtime_name"},
	{[]string{"plugins", criRuntimePlugin, "containerd"}, "default_runtime_name"},
	{[]string{"crio", "runtime"}, "default_runtime"},
}

// withoutGoneDefault takes out a default handler that a file had before and whose definition is
// gone since. NVIDIA's toolkit removes the definition when it is removed. No engine starts with
// such a default.
func withoutGoneDefault(path string, now, before []byte) []byte {
	_, had, errBefore := parse(path, before)
	d, has, err := parse(path, now)
	if err != nil || errBefore != nil {
		return now
	}
	for _, h := range handlerTables {
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
