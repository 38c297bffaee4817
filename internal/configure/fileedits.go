package configure

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/filetree"
)

// fileEdits are the texts that files get, in this order, and what the administrator should know.
type fileEdits struct {
	files []editedFile
	notes []string
}

// editedFile is a file with its new text.
type editedFile struct {
	path string
	text []byte
	from string // the file from which it copies settings; "" for none
}

func (e *fileEdits) note(format string, args ...any) {
	e.notes = append(e.notes, fmt.Sprintf(format, args...))
}

func (e *fileEdits) write(path string, text []byte) {
	e.files = append(e.files, editedFile{path: path, text: text})
}

// changes are the edits of files whose content differs.
func (e *fileEdits) changes(in filetree.System) ([]FileChange, error) {
	var changes []FileChange
	for _, f := range e.files {
		name, before, err := in.Load(f.path)
		if err != nil {
			return nil, err
		}
		after, err := f.content(in, before)
		if err != nil {
			return nil, err
		}
		c := FileChange{Path: f.path, Action: "edit", name: name, before: before, after: after,
			copies: f.from != "", Diff: diff(f.path, before.Data, f.text)}
		switch {
		case before.Kind == filetree.Nothing:
			c.Action = "create"
		case before.Same(after) && before.Mode == after.Mode && before.GID == after.GID:
			continue
		case before.Same(after):
			c.Why = "it copies settings from " + f.from + ", which fewer users can read"
		}
		changes = append(changes, c)
	}
	return changes, nil
}

// content is the file as it will be. Settings that it copies can be a registry's passwords.
func (f editedFile) content(in filetree.System, before filetree.FileContent) (filetree.FileContent, error) {
	after := filetree.NewFile(f.text, before)
	if f.from == "" {
		return after, nil
	}
	_, from, err := in.Load(f.from)
	return after.AsClosedAs(from), err
}

// secrets matches a secret's key, and its value up to the end of the line.
var secrets = regexp.MustCompile(
	`(?im)((?:\b|[\w-])(?:password|auth|authorization|token|secret)["']?[ \t]*[=:][ \t]*)\S.*$`)

// diff is what is printed of an edit, without the values of secrets.
func diff(path string, before, after []byte) string {
	lines := strings.SplitAfter(configfile.Unified(path, before, after), "\n")
	end := "" // of a secret's value; "": none is open
	for i, line := range lines {
		key := secrets.FindStringSubmatchIndex(line)
		switch {
		case line == "", strings.HasPrefix(line, "@@"):
			end = ""
		case end != "":
			lines[i] = line[:1] + "(not shown)\n"
			if strings.Contains(line, end) {
				end = ""
			}
		case key != nil:
			end = endOf(line[key[3]:])
			lines[i] = line[:key[3]] + "\"(not shown)\"\n"
		}
	}
	return strings.Join(lines, "")
}

// endOf returns what ends a value that goes on in the next line, or "".
func endOf(value string) string {
	for _, quotes := range []string{`"""`, "'''"} {
		if strings.HasPrefix(value, quotes) && strings.Count(value, quotes) == 1 {
			return quotes
		}
	}
	for begin, end := range map[string]string{"[": "]", "{": "}"} {
		if strings.HasPrefix(value, begin) && !strings.Contains(value, end) {
			return end
		}
	}
	return ""
}
