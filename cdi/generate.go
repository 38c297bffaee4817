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
	return f.planAndApply(func(files []cdiFile) (all []cdiFile, notes []string) {
		for _, l := range files {
			if l.grant != "" && l.want != nil { // after a boot, the files that it mounts do not exist
				if err := grants.Prepare(f.Node, l.grant); err != nil {
					notes = append(notes, fmt.Sprintf("%s: %v", l.path, err))
				}
			}
		}
		return files, notes
	})
}

// Update updates the existing files after the node or the ledger has changed, as Generate does. It
// does nothing on a node without such files, makes no directory, and returns only the changes. A
// file that Generate would remove for want of a GPU stays: the GPU may be back a moment later, and
// Update makes no file anew.
func (f Files) Update() (changes []FileResult, notes []string, err error) {
	if there, err := f.anyFile(); err != nil || !there {
		return nil, nil, err
	}
	if err := f.Ready(); err != nil {
		return nil, nil, err
	}
	changes, notes, err = f.planAndApply(func(files []cdiFile) ([]cdiFile, []string) {
		return slices.DeleteFunc(files, func(l cdiFile) bool {
			return l.have == nil || l.unchanged || l.want == nil && f.lacksGPUs(l)
		}), nil
	})
	same := func(r FileResult) bool { return r.What == Unchanged || r.What == Absent }
	return slices.DeleteFunc(changes, same), notes, err
}

// planAndApply gives the files that choose leaves their intended content. If another process has
// changed one since it was planned, that process may have known the node less well: all are planned
// once more. A file that is changed again then is left alone, with a note.
func (f Files) planAndApply(choose func([]cdiFile) ([]cdiFile, []string)) (changes []FileResult,
	notes []string, err error) {
	for last := false; ; last = true {
		files, all, err := f.plan()
		if err != nil {
			return changes, notes, err
		}
		files, more := choose(files)
		notes = append(all, more...) // those of the first plan come again
		done, replaced, err := applyAll(slices.DeleteFunc(files, func(l cdiFile) bool {
			return slices.ContainsFunc(changes, func(r FileResult) bool { return r.Path == l.path })
		}))
		changes = append(changes, done...)
		if err != nil || len(replaced) == 0 || last {
			return changes, append(notes, replaced...), err
		}
	}
}

// applyAll gives the files their intended content. The notes are of those that it left alone.
func applyAll(files []cdiFile) (changes []FileResult, notes []string, err error) {
	for _, l := range files {
		what, err := l.apply()
		switch {
		case errors.Is(err, errReplaced):
			notes = append(notes, fmt.Sprintf("%s is left as it is: %v", l.path, err))
		case err != nil:
			return changes, notes, err
		default:
			changes = append(changes, FileResult{Path: l.path, What: what})
		}
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
	return slices.ContainsFunc([]string{f.Path(), f.askPath()}, func(path string) bool {
		_, err := os.Lstat(path)
		return err == nil
	}), nil
}

// lacksGPUs reports whether a file is one that the node has as soon as it has GPUs again. A policy
// that allows none of the sizes is another reason for which the file of sizes goes.
func (f Files) lacksGPUs(l cdiFile) bool {
	inv, _ := f.Node.Inventory()
	return l.path == f.Path() ||
		l.path == f.askPath() && len(f.Node.Policy.Asks.Engines) > 0 && largestGPU(inv) == 0
}

// apply gives a file its intended content. The error is errReplaced where the file is not the one
// that the plan saw.
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
