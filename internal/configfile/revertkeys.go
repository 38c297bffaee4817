package configfile

import (
	"errors"
	"maps"
	"reflect"
	"slices"
)

// RevertKeys takes one change out of a file that another program has written anew since, so that no
// line is where it was. Each key that the change set gets its old value, unless it was set
// otherwise since. A table named own is taken out with everything that was added to it since. It
// returns false if a text cannot be read or edited.
func RevertKeys(path string, now, after, before []byte, own string) ([]byte, bool) {
	from, err := Parse(path, after)
	if err != nil {
		return nil, false
	}
	to, err := Parse(path, before)
	if err != nil {
		return nil, false
	}
	d, err := Parse(path, now)
	if err != nil || revertTree(d, nil, from.Tree(), to.Tree(), own) != nil {
		return nil, false
	}
	return d.Bytes(), true
}

// revertTree changes the keys in which two trees differ to the value of the second. It leaves a key
// alone whose value is not that of the first.
func revertTree(d Document, path []string, from, to map[string]any, own string) error {
	names := slices.Sorted(maps.Keys(from))
	for name := range to {
		if _, found := from[name]; !found {
			names = append(names, name)
		}
	}
	for _, name := range names {
		at := slices.Concat(path, []string{name})
		is, found := d.Get(at...)
		ours, had := from[name]
		theirs, wanted := to[name]
		below, wasTable := ours.(map[string]any)
		above, isTable := theirs.(map[string]any)
		var err error
		switch {
		case reflect.DeepEqual(ours, theirs) && had == wanted:
		case name == own && wasTable && !wanted:
			err = d.Unset(at...)
		case wasTable && (isTable || !wanted):
			if err = revertTree(d, at, below, above, own); err == nil && !wanted {
				err = unsetEmpty(d, at)
			}
		case found != had: // it was taken out or put there again since
		case !reflect.DeepEqual(is, ours):
			err = revertList(d, at, is, ours, theirs)
		case wanted:
			err = d.Set(theirs, at...)
		default:
			err = d.Unset(at...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Differing are the keys, sorted, that two texts of a file set otherwise. A table that only one of
// them has is one key.
func Differing(path string, a, b []byte) ([]string, error) {
	is, errA := Parse(path, a)
	was, errB := Parse(path, b)
	if err := errors.Join(errA, errB); err != nil {
		return nil, err
	}
	keys := differing(nil, is.Tree(), was.Tree())
	slices.Sort(keys)
	return keys, nil
}

func differing(path []string, a, b map[string]any) (keys []string) {
	for _, name := range Union(sortedKeys(a), sortedKeys(b)...) {
		at := slices.Concat(path, []string{name})
		below, isTable := a[name].(map[string]any)
		above, wasTable := b[name].(map[string]any)
		switch {
		case isTable && wasTable:
			keys = append(keys, differing(at, below, above)...)
		case !reflect.DeepEqual(a[name], b[name]):
			keys = append(keys, Dotted(at))
		}
	}
	return keys
}

// revertList takes the change's items out of a list that others have changed too.
func revertList(d Document, path []string, is, ours, theirs any) error {
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
	return d.Set(left, path...)
}

// unsetEmpty takes out a table if nothing is left in it.
func unsetEmpty(d Document, path []string) error {
	if v, _ := d.Get(path...); reflect.DeepEqual(v, map[string]any{}) {
		return d.Unset(path...)
	}
	return nil
}
