package main

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestWrap(t *testing.T) {
	long := strings.Repeat("x", 25)
	for name, c := range map[string]struct{ text, want string }{
		"short":             {"a b", "- a b"},
		"at the edge":       {"aaaa bbb", "- aaaa bbb"},
		"nothing":           {"", "- "},
		"a word too long":   {long, "- xxxxxxxx\n  xxxxxxxx\n  xxxxxxxx\n  x"},
		"and one before it": {"a " + long, "- a xxxxxx\n  xxxxxxxx\n  xxxxxxxx\n  xxx"},
		"characters":        {"äää öööö", "- äää öööö"},
		"one too many":      {"ääää öööö", "- ääää\n  öööö"},
	} {
		if got := wrap(c.text, 10, "- ", "  "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestFit: of a table that is too wide the names are cut, as much as is needed.
func TestFit(t *testing.T) {
	rows := [][]string{{"GPU", "NAME", "MODE"}, {"0", strings.Repeat("ä", 95), "limit"}, {"1", "Tesla V100", "-"}}
	fit(rows, 1, 30)
	var text strings.Builder
	if err := writeRows(&text, rows); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 30 {
			t.Errorf("%q has %d columns", line, n)
		}
	}
	if rows[1][1] != strings.Repeat("ä", 17)+"…" || rows[2][1] != "Tesla V100" {
		t.Errorf("%q", rows)
	}
	if widthOf(rows, -1) != 30 {
		t.Errorf("%d columns", widthOf(rows, -1))
	}
}

// TestDetailsHaveLinesOfTheirOwn where they are too long for one.
func TestDetailsHaveLinesOfTheirOwn(t *testing.T) {
	head := []string{"  GRANT", "STATE", "OWNER", "CONTAINERS", "LABEL"}
	for name, c := range map[string]struct {
		row  []string
		want string
	}{
		"short": {[]string{"  g-a", "free", "bearer", "-", "x"}, "  GRANT  STATE  OWNER   CONTAINERS  LABEL\n  g-a    free   bearer  -           x\n"},
		"long":  {[]string{"  g-a", "bound", "pod:7a1c0000-0000-4000-8000-00000000000b/train", "c1", ""}, "  GRANT  STATE\n  g-a    bound\n      of pod:7a1c0000-0000-4000-8000-00000000000b/train\n      in c1\n"},
	} {
		var text strings.Builder
		if err := writeDetails(&text, [][]string{head, c.row}, 60); err != nil {
			t.Fatal(err)
		}
		if text.String() != c.want {
			t.Errorf("%s:\n%swant\n%s", name, text.String(), c.want)
		}
	}
}
