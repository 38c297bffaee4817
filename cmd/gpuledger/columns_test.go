package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"github.com/gpuledger/gpuledger/internal/grant"
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

// TestWrapOnAVeryNarrowTerminal: what lines begin with leaves at least one column to the text.
func TestWrapOnAVeryNarrowTerminal(t *testing.T) {
	const text = "of pod:7a1c in ä"
	for columns := 1; columns <= 7; columns++ {
		for _, begin := range []string{"", "  ", "      "} {
			got := wrap(text, columns, begin, begin)
			if strings.Join(strings.Fields(got), "") != strings.ReplaceAll(text, " ", "") {
				t.Errorf("%d columns after %q: %q", columns, begin, got)
			}
			for line := range strings.Lines(got) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns {
					t.Errorf("%d columns after %q: %q has %d", columns, begin, line, n)
				}
			}
		}
	}
}

// TestDescriptionsAreWrapped: no line of a description is too long, and none is so short that the
// next word fits in it.
func TestDescriptionsAreWrapped(t *testing.T) {
	app := program()
	descriptions := map[string]string{app.Name: app.Description}
	var collect func(above string, commands []*cli.Command)
	collect = func(above string, commands []*cli.Command) {
		for _, c := range commands {
			name := above + " " + c.Name
			descriptions[name] = c.Description
			collect(name, c.Subcommands)
		}
	}
	collect(app.Name, app.Commands)
	for name, text := range descriptions {
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			if len(line) > descriptionColumns {
				t.Errorf("%s: %q is too long", name, line)
			}
			if i+1 == len(lines) || line == "" || lines[i+1] == "" {
				continue
			}
			if word, _, _ := strings.Cut(lines[i+1], " "); len(line+" "+word) <= descriptionColumns {
				t.Errorf("%s: %q is short, and %q follows", name, line, word)
			}
		}
	}
	if want := "a b\nc\n\nd"; wrapParagraphs("a\nb c\n\nd", 3) != want {
		t.Errorf("%q, want %q", wrapParagraphs("a\nb c\n\nd", 3), want)
	}
}

// TestFit: in a table that is too wide the names are cut, as much as needed.
func TestFit(t *testing.T) {
	rows := [][]string{{"GPU", "NAME", "MODE"}, {"0", strings.Repeat("ä", 95), "limit"},
		{"1", "Tesla V100", "-"}}
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

// TestLongDetailsHaveSeparateLines if they are too long for one line.
func TestLongDetailsHaveSeparateLines(t *testing.T) {
	head := []string{"  GRANT", "STATE", "COMPUTE", "STRENGTH", "OWNER", "CONTAINERS", "LABEL"}
	const pod = "pod:7a1c0000-0000-4000-8000-00000000000b/train"
	for name, c := range map[string]struct {
		columns int
		row     []string
		want    string
	}{
		"short": {60, []string{"  g-a", "free", "-", "none", "bearer", "-", "x"},
			"  GRANT  STATE  COMPUTE  STRENGTH  OWNER   CONTAINERS  LABEL\n  g-a    free   -     " +
				"   none    " +
				"  bearer  -           x\n"},
		"long": {60, []string{"  g-a", "bound", "-", "none", pod, "c1", ""},
			"  GRANT  STATE  COMPUTE  STRENGTH\n  g-a    bound  -        none\n      of " + pod +
				"\n      in c1\n"},
		"narrow": {32, []string{"  g-a", "bound", "30%", "none", "bearer", "-", "x"},
			"  GRANT  STATE\n  g-a    bound\n      compute 30%\n      strength none\n      of bearer\n    " +
				"  label x\n"},
	} {
		var text strings.Builder
		if err := writeDetails(&text, [][]string{head, c.row}, c.columns); err != nil {
			t.Fatal(err)
		}
		if text.String() != c.want {
			t.Errorf("%s:\n%swant\n%s", name, text.String(), c.want)
		}
	}
}

// TestInGiB: a column has one unit; a small amount is not printed as zero.
func TestInGiB(t *testing.T) {
	for b, want := range map[grant.Bytes]string{0: "0.0", 1: "<0.1", 50 * grant.MiB: "<0.1",
		52 * grant.MiB: "0.1", grant.GiB / 2: "0.5",
		4 * grant.GiB: "4.0", 16160 * grant.MiB: "15.8", 3 * grant.TiB: "3072.0"} {
		if got := inGiB(b); got != want {
			t.Errorf("%d is %s, want %s", b, got, want)
		}
	}
	if got := inMiB(16160*grant.MiB + 5); got != "16160MiB" {
		t.Error(got)
	}
}

// TestCardsOnANarrowTerminal: names are cut, then columns are left out; the GPU's memory is always
// shown.
func TestCardsOnANarrowTerminal(t *testing.T) {
	for _, columns := range []int{200, 80, 79, 70, 60, 50, 40, 34} {
		rows := [][]string{{"GPU", "NAME", "MODE", "USED GiB", "ALLOCATED/TOTAL GiB", "COMPUTE", "GRANTS"},
			{"0", "Tesla V100-SXM2-16GB", "limit", "9.1", "8.0/15.8", "25%", "2"},
			{"1", "Tesla V100-SXM2-16GB", "exclusive", "10.0", "12.0/15.8", "-", "11"}}
		var text strings.Builder
		if err := printCards(&text, rows, columns); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(text.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns {
				t.Errorf("%d columns: %q has %d", columns, line, n)
			}
		}
		for _, want := range []string{" 9.1 ", "10.0", " 8.0/15.8", "12.0/15.8"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%d columns: no %q in\n%s", columns, want, text.String())
			}
		}
	}
}
