package configure

import (
	"fmt"

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
}

func (e *fileEdits) note(format string, args ...any) {
	e.notes = append(e.notes, fmt.Sprintf(format, args...))
}

func (e *fileEdits) write(path string, text []byte) {
	e.files = append(e.files, editedFile{path, text})
}

// changes are the edits of files whose content differs.
func (e *fileEdits) changes(in filetree.System) ([]FileChange, error) {
	var changes []FileChange
	for _, f := range e.files {
		name, before, err := in.Load(f.path)
		if err != nil {
			return nil, err
		}
		after := filetree.NewFile(f.text, before)
		if before.Same(after) {
			continue
		}
		c := FileChange{Path: f.path, Action: "edit", name: name, before: before, after: after,
			Diff: configfile.Unified(f.path, before.Data, f.text)}
		if before.Kind == filetree.Nothing {
			c.Action = "create"
		}
		changes = append(changes, c)
	}
	return changes, nil
}
