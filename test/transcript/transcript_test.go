package transcript

import (
	"reflect"
	"testing"
)

func TestSteps(t *testing.T) {
	const page = "# Title\n```\n# none of it\n```\n## A\n```console\n# one\nsays\nmore\n# cat " +
		"<<END\n> a\n> " +
		"END\n```\ntext # not a heading\n### Below\n```\nada$ two\n```\n" +
		"```toml\nno = \"transcript\"\n> nor this\n```\n## B\n```\n# three\n```\n"
	want := []Step{{Command: "one", Says: "says\nmore\n"}, {Command: "cat <<END\na\nEND"},
		{Command: "two", User: "ada"}}
	if got := Steps(page, "A"); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Steps(page, "Below"); !reflect.DeepEqual(got, want[2:]) {
		t.Errorf("got %q, want %q", got, want[2:])
	}
	if got := Steps(page, "C"); got != nil {
		t.Errorf("got %q of a section that is not there", got)
	}
}

func TestAgrees(t *testing.T) {
	for _, c := range []struct {
		said, shown string
		want        bool
	}{
		{"a  b\nc\n", "a b c", true},
		{"a b c", "a b", false},
		{"a b", "a b c", false},
		{"", "", true},
		{"something", "", false},
		{"", "something", false},
		{"a\nb\nc\n", "a\n...\nc\n", true},
		{"a\nc\n", "a\n...\nc\n", true},
		{"a\nb\nd\n", "a\n...\nc\n", false},
		{"x\na\n", "...\na\n", true},
		{"a\nx\n", "...\na\n", false},
		{"a\nx\n", "a\n...\n", true},
		{"x\n", "a\n...\n", false},
		{"c a c", "... c", true},
		{"a\nb\nc\nd\n", "a ... c ... b ... d", false},
		{"g-abcdefghijkl.0123456789abcdef0123456789abcdef", "g-zzzzzzzzzzzz.ffffffffffffffffffffffffffffffff", true},
		{"g-abcdefghijkl g-abcdefghijkl", "g-abcdefghijkl g-zzzzzzzzzzzz", false},
		{"on Nov 21 04:48", "on Jan  1 00:00", true},
	} {
		if got := Agrees(c.said, c.shown); got != c.want {
			t.Errorf("%q and %q: %t, want %t", c.said, c.shown, got, c.want)
		}
	}
}
