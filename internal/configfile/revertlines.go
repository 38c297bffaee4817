package configfile

import (
	"bytes"

	"github.com/rogpeppe/go-internal/diff"
)

// hunk is one place of a change: the changed lines with some lines around them, before and after.
type hunk struct{ old, new []byte }

// hunks are the places in which two texts differ. The library returns them only as a unified diff.
func hunks(old, new []byte) []hunk {
	var found []hunk
	var last byte
	for line := range bytes.Lines(diff.Diff("old", old, "new", new)) {
		if bytes.HasPrefix(line, []byte("@@ ")) {
			found = append(found, hunk{})
			continue
		}
		if len(found) == 0 { // the header of the diff
			continue
		}
		h := &found[len(found)-1]
		op := line[0]
		switch op {
		case '-':
			h.old = append(h.old, line[1:]...)
		case '+':
			h.new = append(h.new, line[1:]...)
		case ' ':
			h.old, h.new = append(h.old, line[1:]...), append(h.new, line[1:]...)
		case '\\': // "\ No newline at end of file", of the line before
			if last != '+' {
				h.old = bytes.TrimSuffix(h.old, []byte("\n"))
			}
			if last != '-' {
				h.new = bytes.TrimSuffix(h.new, []byte("\n"))
			}
		}
		last = op
	}
	return found
}

// RevertLines takes one change out of a text that others have changed too: it applies the change
// backwards. It returns false if it finds a hunk of the change not exactly once.
func RevertLines(now, after, before []byte) ([]byte, bool) {
	for _, h := range hunks(after, before) {
		if len(h.old) == 0 || bytes.Count(now, h.old) != 1 {
			return nil, false
		}
		now = bytes.Replace(now, h.old, h.new, 1)
	}
	return now, true
}

// Unified is a unified diff of a change, without its first line, which repeats the names.
func Unified(path string, before, after []byte) string {
	old := path
	if len(before) == 0 {
		old = "/dev/null"
	}
	_, text, _ := bytes.Cut(diff.Diff(old, before, path, after), []byte("\n"))
	return string(text)
}
