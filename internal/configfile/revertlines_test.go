package configfile

import (
	"strings"
	"testing"
)

func TestRevertLines(t *testing.T) {
	lines := func(s string) []byte { return []byte(strings.ReplaceAll(s, " ", "\n") + "\n") }
	before, after := lines("a b c d e f g h"), lines("a b c D e f g h i")
	for name, c := range map[string]struct {
		now, want []byte
		ok        bool
	}{
		"nobody has":     {after, before, true},
		"in front of it": {lines("0 a b c D e f g h i"), lines("0 a b c d e f g h"), true},
		"behind it":      {lines("a b c D e f g h i j"), lines("a b c d e f g h j"), true},
		"in it":          {lines("a b c X e f g h i"), nil, false},
		"twice the same": {append(lines("a b c D e f g h i"), lines("a b c D e f g h i")...), nil,
			false},
		"all of it taken out":    {before, nil, false},
		"without an end of line": {[]byte(strings.TrimSuffix(string(after), "\n")), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := RevertLines(c.now, after, before); ok != c.ok ||
				ok && string(got) != string(c.want) {
				t.Errorf("got %q, %v", got, ok)
			}
		})
	}
}

// TestRevertLinesAcrossAMissingEndOfLine: if nothing else has changed, it restores the text before
// exactly.
func TestRevertLinesAcrossAMissingEndOfLine(t *testing.T) {
	for _, c := range [][2]string{{"a\nb", "a\nb\nc\n"}, {"a\nb\n", "a\nb\nc"}, {"a", "b"},
		{"a\nb", "a\nx\nb"}} {
		if got, ok := RevertLines([]byte(c[1]), []byte(c[1]), []byte(c[0])); !ok || string(got) != c[0] {
			t.Errorf("%q back to %q: got %q, %v", c[1], c[0], got, ok)
		}
	}
}
