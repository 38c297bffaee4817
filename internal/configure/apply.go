package configure

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// Apply carries out the whole plan, or on an error nothing of it. The record for an undo is durable
// before the first file changes.
func (p *Plan) Apply() error {
	if len(p.Changes) == 0 {
		return nil
	}
	s, err := openStore(p.in.System, p.Policy.StateDir)
	if err != nil {
		return err
	}
	defer s.close()
	old, err := s.load(p.in.Engine)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := unchanged(p.in.System, p.Changes); err != nil {
		return err
	}
	next := p.next(old)
	if err := s.save(next); err != nil {
		return fmt.Errorf("cannot keep what is there now: %w",
			errors.Join(err, s.save(restoredTo(old, p.in.Engine))))
	}
	failpoint.Hit("configure/recorded")
	for i, c := range p.Changes {
		err := makeDirs(p.in.System, c.name)
		if err == nil {
			err = writeContent(p.in.System, c.name, c.after)
		}
		if err != nil {
			return p.rollBack(s, old, next, i, err)
		}
		failpoint.Hit("configure/changed")
	}
	return nil
}

// unchanged returns an error if a file differs from what the plan has read.
func unchanged(in filetree.System, changes []FileChange) error {
	for _, c := range changes {
		now, err := in.Read(c.name)
		if err != nil {
			return err
		}
		if !now.Same(c.before) {
			return fmt.Errorf("cannot write %s: another program has changed it in this moment; run it again",
				c.Path)
		}
	}
	return nil
}

// next is the old record with this plan's changes. An undo still restores the state before the
// first configure, with the lines that others have added since.
func (p *Plan) next(old engineRecord) engineRecord {
	r := engineRecord{Version: 1, Engine: p.in.Engine, Main: p.in.File, Found: p.found, Default: p.former,
		Files: slices.Clone(old.Files), Directories: slices.Clone(old.Directories)}
	running := daemonsOf(p.in)
	r.Unread, r.Older = unread(p.in.Engine, old, running), old.Older
	if slices.ContainsFunc(p.Changes, isEngines) {
		r.Older = running
	}
	for _, c := range p.Changes {
		for _, dir := range missingDirs(p.in.System, c.name) {
			if !slices.Contains(r.Directories, dir) {
				r.Directories = append(r.Directories, dir)
			}
		}
		e := fileRecord{Path: c.Path, Name: c.name, Before: c.before, After: c.after, Shared: c.shared,
			Copies: c.copies}
		i := slices.IndexFunc(r.Files, func(o fileRecord) bool { return o.Name == c.name })
		if i < 0 {
			// an undo does not put back what another program has copied of gpuledger's
			for _, without := range p.cleaned {
				if without.name == c.name {
					e.Before = without.after
				}
			}
			r.Files = append(r.Files, e)
			continue
		}
		e.Before, e.Mixed = origin(r.Files[i], c.before)
		r.Files[i] = e
	}
	return r
}

// isEngines reports whether the engine reads the file when it starts.
func isEngines(c FileChange) bool { return !c.shared && c.after.Kind != filetree.Link }

// origin is the content that an undo restores for a file that configure has changed before. now is
// the file's present content. mixed reports that the lines of others could not be told apart from
// gpuledger's.
func origin(e fileRecord, now filetree.FileContent) (before filetree.FileContent, mixed bool) {
	switch {
	case now.Same(e.After):
		return e.original(now), e.Mixed
	case now.Same(e.Before):
		return now, e.Mixed
	}
	if theirs, ok := withoutOurs(e, now); ok {
		return theirs, e.Mixed
	}
	return now, now.Kind == filetree.Regular
}

// rollBack restores the files up to and including the one that failed, the last one first. Then it
// removes the plan's changes from the record. A file that still has its old content is not written,
// because that would fail again, as on a read-only file system.
func (p *Plan) rollBack(s *store, old, next engineRecord, failed int, why error) error {
	var left error
	for _, c := range slices.Backward(p.Changes[:failed+1]) {
		if now, err := p.in.System.Read(c.name); err == nil && now.SameAll(c.before) {
			continue
		}
		left = errors.Join(left, writeContent(p.in.System, c.name, c.before))
	}
	if left != nil {
		return fmt.Errorf(
			"%w; and it could not be rolled back: %w; `gpuledger configure %s --undo` tries again",
			why, left, p.in.Of().Name)
	}
	removeDirs(p.in.System, next.Directories, old.Directories)
	if err := s.save(restoredTo(old, p.in.Engine)); err != nil {
		return fmt.Errorf("%w; it was rolled back, but the record stays: %w", why, err)
	}
	return fmt.Errorf("%w; nothing was changed", why)
}

// restoredTo is the record from before a plan; it names no files if there was none.
func restoredTo(old engineRecord, engine grant.Engine) engineRecord {
	old.Version, old.Engine = 1, engine
	return old
}
