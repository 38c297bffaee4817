package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/gpuledger/gpuledger/internal/host"
)

// Change is what became of one file.
type Change struct {
	Path string
	What What
}

// What is one of four.
type What string

// What becomes of a file. One that is right is not touched, so that engines which watch the
// directory read nothing anew.
const (
	Written   What = "written"
	Unchanged What = "unchanged"
	Removed   What = "removed"
	Absent    What = "absent"
)

// Generate writes the file of the node's GPUs, makes the files of grants anew, and removes those of
// grants whose time is over. Doing it twice changes nothing. The notes say what was left out or
// left alone, and why.
func (f Files) Generate() (changes []Change, notes []string, err error) {
	if err := f.Ready(); err != nil {
		return nil, nil, err
	}
	files, notes, err := f.plan()
	if err != nil {
		return nil, nil, err
	}
	for _, l := range files {
		if l.grant != "" && l.want != nil { // after a boot what the file mounts is not there
			if err := f.Node.Prepare(l.grant); err != nil {
				notes = append(notes, fmt.Sprintf("%s: %v", l.path, err))
			}
		}
		what, err := l.apply()
		if err != nil {
			return changes, notes, err
		}
		changes = append(changes, Change{Path: l.path, What: what})
	}
	return changes, notes, nil
}

// Tend makes anew those of our files that are there, after the node or the ledger has changed: what
// Generate does, on a node that offers something by CDI. It makes no directory, and gives only the
// changes.
func (f Files) Tend() (changes []Change, notes []string, err error) {
	if there, err := f.any(); err != nil || !there {
		return nil, nil, err
	}
	if err := f.Ready(); err != nil {
		return nil, nil, err
	}
	files, notes, err := f.plan()
	if err != nil {
		return nil, nil, err
	}
	for _, l := range files {
		if l.have == nil || l.unchanged {
			continue
		}
		what, err := l.apply()
		if err != nil {
			return changes, notes, err
		}
		changes = append(changes, Change{Path: l.path, What: what})
	}
	return changes, notes, nil
}

// any reports whether one of our files is there.
func (f Files) any() (bool, error) {
	ids, err := f.exposed()
	if err != nil || len(ids) > 0 {
		return len(ids) > 0, err
	}
	_, err = os.Lstat(f.Path())
	return err == nil, nil
}

func (l file) apply() (What, error) {
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
