package cdi

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
)

// FileResult says what happened to one file.
type FileResult struct {
	Path string
	What What
}

// What is the kind of a change.
type What string

// The values of What. A correct file is not touched, so that engines which watch the directory do
// not read it again.
const (
	Written   What = "written"
	Unchanged What = "unchanged"
	Removed   What = "removed"
	Absent    What = "absent"
)

// Generate writes the file of the node's GPUs, rewrites the files of grants, and removes those of
// grants that have ended. A second call changes nothing. The notes say what was left out or left
// alone, and why.
func (f Files) Generate() (changes []FileResult, notes []string, err error) {
	if err := f.Ready(); err != nil {
		return nil, nil, err
	}
	files, notes, err := f.plan()
	if err != nil {
		return nil, nil, err
	}
	for _, l := range files {
		if l.grant != "" && l.want != nil { // after a boot, the files that it mounts do not exist
			if err := grants.Prepare(f.Node, l.grant); err != nil {
				notes = append(notes, fmt.Sprintf("%s: %v", l.path, err))
			}
		}
	}
	return applyAll(files, notes)
}

// Update updates the existing files after the node or the ledger has changed, as Generate does. It
// does nothing on a node without such files, makes no directory, and returns only the changes.
func (f Files) Update() (changes []FileResult, notes []string, err error) {
	if there, err := f.anyFile(); err != nil || !there {
		return nil, nil, err
	}
	if err := f.Ready(); err != nil {
		return nil, nil, err
	}
	files, notes, err := f.plan()
	if err != nil {
		return nil, nil, err
	}
	files = slices.DeleteFunc(files, func(l cdiFile) bool { return l.have == nil || l.unchanged })
	changes, notes, err = applyAll(files, notes)
	same := func(r FileResult) bool { return r.What == Unchanged || r.What == Absent }
	return slices.DeleteFunc(changes, same), notes, err
}

// applyAll gives the files their intended content. Those that it left alone are no changes, and it
// adds them to the notes.
func applyAll(files []cdiFile, notes []string) (changes []FileResult, all []string, err error) {
	for _, l := range files {
		what, err := l.apply()
		if errors.Is(err, errReplaced) {
			notes = append(notes, fmt.Sprintf("%s is left as it is: %v", l.path, err))
			continue
		}
		if err != nil {
			return changes, notes, err
		}
		changes = append(changes, FileResult{Path: l.path, What: what})
	}
	return changes, notes, nil
}

// errReplaced means that a plan is older than the file.
var errReplaced = errors.New("another process has just changed it")

// anyFile reports whether a CDI file of gpuledger's exists.
func (f Files) anyFile() (bool, error) {
	ids, err := f.exposed()
	if err != nil || len(ids) > 0 {
		return len(ids) > 0, err
	}
	_, err = os.Lstat(f.Path())
	return err == nil, nil
}

// apply gives a file its intended content. The error is errReplaced where the file is not the one
// that the plan saw: another process knows the grant or the node better.
func (l cdiFile) apply() (What, error) {
	now := l
	if !l.unchanged {
		now = inspect(l.path, l.mode)
	}
	switch {
	case l.isSame(now):
	case bytes.Equal(now.have, l.want) && (now.have == nil) == (l.want == nil):
		l.have, l.unchanged = now.have, true // another process has done the same
	default:
		return "", errReplaced
	}
	switch {
	case l.want == nil && l.have == nil:
		return Absent, nil
	case l.want == nil:
		if err := os.Remove(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("cannot remove a CDI file: %w", err)
		}
		return Removed, nil
	case l.unchanged:
		return Unchanged, nil
	}
	return Written, host.ReplaceFile(l.path, l.want, l.mode, host.Durable)
}

// isSame reports whether nothing has changed the file since it was read. A file that was written
// again with the same content is another one.
func (l cdiFile) isSame(now cdiFile) bool {
	if l.info == nil || now.info == nil {
		return l.info == nil && now.info == nil
	}
	return os.SameFile(l.info, now.info) && bytes.Equal(l.have, now.have)
}
