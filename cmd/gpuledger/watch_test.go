package main

import (
	"slices"
	"strings"
	"testing"
)

func TestWithin(t *testing.T) {
	lines := func(text string) []string { return strings.Split(text, "|") }
	for name, c := range map[string]struct {
		lines         string
		rows, columns int
		want          string
	}{
		"it fits":       {"ab|cd", 2, 2, "ab|cd"},
		"too wide":      {"abcd|ääää", 2, 3, "ab…|ää…"},
		"too long":      {"a|b|c|d", 3, 80, "a|b|… 2 more lines"},
		"both":          {"abcd|b|c", 2, 5, "abcd|… 2…"},
		"one line":      {"a|b|c", 1, 80, "… 3 more lines"},
		"one character": {"abc", 1, 1, "…"},
	} {
		if got := within(lines(c.lines), c.rows, c.columns); !slices.Equal(got, lines(c.want)) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
