package configfile

import (
	"maps"
	"slices"
)

// Setter makes several edits of a document and keeps the first error.
type Setter struct {
	Document
	Err error
}

// To sets a value at a path, unless an edit before failed.
func (s *Setter) To(value any, path ...string) {
	if s.Err == nil {
		s.Err = s.Set(value, path...)
	}
}

// Copy sets each key of like that has and never do not contain, and that is not zero.
func (s *Setter) Copy(path []string, like, has map[string]any, never []string) {
	for _, key := range slices.Sorted(maps.Keys(like)) {
		if _, found := has[key]; found || slices.Contains(never, key) || isZero(like[key]) {
			continue
		}
		s.To(like[key], slices.Concat(path, []string{key})...)
	}
}

// isZero reports whether a setting is empty. Dumped configurations contain many of those.
func isZero(v any) bool {
	switch v := v.(type) {
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return v == "" || v == false || v == int64(0)
}
