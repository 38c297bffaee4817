package configure

import (
	"bytes"

	"github.com/rogpeppe/go-internal/diff"
)

// hunk is one place of a change: lines with some of those around them, before and after.
type hunk struct{ old, new []byte }

// hunks are the places in which two texts differ. The library tells them as a unified diff only.
func hunks(old, new []byte) []hunk {
	var found []hunk
	var last byte
	for line := range bytes.Lines(diff.Diff("old", old, "new", new)) {
		if bytes.HasPrefix(line, []byte("@@ ")) {
			found = append(found, hunk{})
			continue
		}
		if len(found) == 0 { // the head
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
