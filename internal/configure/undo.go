package configure

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// Undone is what an undo did or would do.
type Undone struct {
	Changes []Change // with action restore, remove or keep
	Kept    int      // files that were changed by others in a way that could not be told apart from ours
	Named   []string // where the engine's files name us all the same, as "file:line"
	Advice  string   // what to do about them

	Callers []grant.Process // daemons of the engine that call our runtime until they are restarted; our own files stay for them

	engine  grant.Engine
	rewrote bool // what still names us is written anew by the engine's distribution at a restart
}

// Undo gives every file back the bytes, the mode and the owner that it had, the engine's files first: they need the others.
// What another program has copied of ours is taken out of its files. It can be repeated. With dry it only tells. An error where
// nothing is known of an engine whose files name our runtime.
func Undo(o Options, stateDir string, dry bool) (Undone, error) {
	p := &Plan{options: o, system: system{root: o.Root}}
	p.Policy.StateDir = stateDir
	r, u, err := p.undo()
	if err != nil {
		return Undone{}, err
	}
	if r.isOver() && len(u.Changes) == 0 {
		return u, unrecorded(o, stateDir, u.Named)
	}
	s, err := openStore(p.system, stateDir)
	if err != nil {
		return Undone{}, err
	}
	defer s.close()
	if r, u, err = p.undo(); err != nil { // nobody else changes it any more
		return Undone{}, err
	}
	heirs, err := s.plan(r, &u)
	if err == nil && !dry {
		err = s.undo(r, u, heirs)
	}
	if err == nil && len(r.Files) == 0 {
		err = unrecorded(o, stateDir, u.Named)
	}
	return u, err
}

// undo is what becomes of other programs' files, and what is in force afterwards.
func (p *Plan) undo() (record, Undone, error) {
	r, _, err := p.record()
	if err != nil {
		return r, Undone{}, err
	}
	r.Engine = p.options.Engine
	without, mended, err := p.undone(r)
	if err != nil {
		return r, Undone{}, err
	}
	u := Undone{Changes: mended, Named: without.named(), Advice: "take that out by hand and run it again"}
	u.engine, u.Callers = r.Engine, callers(r, daemons(p.options, p.mainFile()), p.options.Restarted)
	if place := without.place(); place != nil {
		u.Advice, u.rewrote = "restart "+place.name+", which writes that file anew, and run it again", true
	}
	return r, u, nil
}

// unrecorded is an error that names the lines with our runtime in an engine's files: somebody wrote them by hand, or what
// configure kept is lost.
func unrecorded(o Options, stateDir string, places []string) error {
	if len(places) == 0 {
		return nil
	}
	return fmt.Errorf("cannot undo: %s keeps nothing of `configure` for %s, whose files name %s all the same: %s; take it out there by hand", stateDir, o.Engine,
		ourProgram, strings.Join(places, ", "))
}

// plan tells what becomes of each file of a record, the last one first, and which files another engine's record takes over.
func (s *store) plan(r record, u *Undone) ([]record, error) {
	others, err := s.others(r.Engine)
	if err != nil {
		return nil, err
	}
	var heirs []record
	for _, e := range slices.Backward(r.Files) {
		now, err := s.system.read(e.Name)
		if err != nil {
			return nil, err
		}
		if passedOn(e, others) {
			heirs = inherit(heirs, r, others, e)
			u.Changes = append(u.Changes, keep(e, now, fmt.Sprintf("%s needs it", others[0].Engine)))
			continue
		}
		c := restore(e, now)
		switch {
		case u.Kept > 0, len(u.Named) > 0 && (e.Shared || e.After.Kind == linked): // an engine whose file still names the link must find it
			c = keep(e, now, "a file that stays needs it")
		case c.Action != "keep" && len(u.Callers) > 0 && (e.Shared || e.After.Kind == linked):
			c = keep(e, now, untilRestart(r.Engine, u.Callers))
		case c.Action == "keep" && c.Why != "" && e.Shared:
			c.Why = "somebody has changed it since; no engine needs it any more"
		case c.Action == "keep" && c.Why != "":
			c.Why += fmt.Sprintf("; the original lies in %s", s.original(r, e))
			u.Kept++
		}
		u.Changes = append(u.Changes, c)
	}
	return heirs, nil
}

// daemons are those that the record is to name after the undo. While the engine's files still name us, a daemon that starts
// reads them, so that nothing is known of it.
func (u Undone) daemons(r record) (unread, undone []grant.Process) {
	if u.Kept > 0 || len(u.Named) > 0 && !u.rewrote {
		return r.Unread, r.Undone
	}
	return nil, append([]grant.Process{}, u.Callers...)
}

// needsUs reports whether the engine's files still name us, or the engine calls us all the same.
func (u Undone) needsUs() bool { return u.Kept > 0 || len(u.Named) > 0 || len(u.Callers) > 0 }

// original is where the content from before configure lies.
func (s *store) original(r record, e entry) string {
	if e.Before.Kind != file {
		return "no file: there was none"
	}
	return s.engineDir(r.Engine) + "/" + e.Before.SHA256
}

// passedOn reports whether another engine still needs a file. What was changed on top of another engine's change goes back to
// that one's state.
func passedOn(e entry, others []record) bool {
	return e.Shared && len(others) > 0 && !slices.ContainsFunc(others, func(o record) bool {
		return slices.ContainsFunc(o.Files, func(f entry) bool { return f.Name == e.Name && f.After.same(e.Before) })
	})
}

// inherit gives a file to another engine's record: its undo then restores what was there before both.
func inherit(heirs []record, from record, others []record, e entry) []record {
	heir := others[0]
	for _, o := range others { // the one that has changed it too, if any
		if slices.ContainsFunc(o.Files, func(f entry) bool { return f.Name == e.Name }) {
			heir = o
		}
	}
	i := slices.IndexFunc(heirs, func(h record) bool { return h.Engine == heir.Engine })
	if i < 0 {
		heir.Files = slices.Clone(heir.Files)
		heirs, i = append(heirs, heir), len(heirs)
	}
	h := &heirs[i]
	for _, dir := range from.Directories {
		if strings.HasPrefix(e.Name, dir+"/") {
			h.Directories = union(h.Directories, dir)
		}
	}
	switch at := slices.IndexFunc(h.Files, func(f entry) bool { return f.Name == e.Name }); {
	case at < 0:
		h.Files = slices.Insert(h.Files, 0, e)
	case h.Files[at].Before.same(e.After): // it was changed on top of us
		h.Files[at].Before = e.Before
	}
	return heirs
}

func keep(e entry, now content, why string) Change {
	return Change{Path: e.Path, Action: "keep", Why: why, name: e.Name, before: now, after: now}
}

// restore tells what becomes of a file that looks like now.
func restore(e entry, now content) Change {
	c := Change{Path: e.Path, name: e.Name, before: now, after: e.Before, Action: "restore"}
	if e.Before.Kind == nothing {
		c.Action = "remove"
	}
	switch {
	case now.same(e.Before), now.Kind == nothing, gone(e, now):
		return keep(e, now, "")
	case now.same(e.After) && !e.Mixed:
	default:
		after, ok := withoutOurs(e, now)
		if !ok || e.Mixed {
			return keep(e, now, "somebody has changed it since; take out what is ours by hand")
		}
		c.Why = "somebody has changed it since; only our lines are taken out"
		c.after = after
		if after.Kind != nothing {
			c.Action = "restore"
		}
	}
	c.Diff = unified(e.Path, now.data, c.after.data)
	return c
}

// undo does it, and then forgets what is done.
func (s *store) undo(r record, u Undone, heirs []record) error {
	for _, h := range heirs {
		if err := s.save(h); err != nil {
			return fmt.Errorf("cannot hand files over to %s: %w", h.Engine, err)
		}
		failpoint.Hit("configure/inherited")
	}
	for _, c := range u.Changes {
		if c.Action == "keep" {
			continue
		}
		if err := s.system.write(c.name, c.after); err != nil {
			return err
		}
		failpoint.Hit("configure/restored")
	}
	s.system.removeDirs(r.Directories, nil)
	kept := record{Version: 1, Engine: r.Engine, Main: r.Main, Default: r.Default, Directories: r.Directories}
	kept.Unread, kept.Undone = u.daemons(r)
	for _, e := range r.Files {
		i := slices.IndexFunc(u.Changes, func(c Change) bool { return c.name == e.Name })
		if c := u.Changes[i]; c.Action == "keep" && c.Why != "" && !inherited(heirs, e) && (!e.Shared || u.needsUs()) {
			kept.Files = append(kept.Files, e)
		}
	}
	if err := s.save(kept); err != nil {
		return fmt.Errorf("cannot forget what is undone: %w", err)
	}
	failpoint.Hit("configure/forgotten")
	return nil
}

func inherited(heirs []record, e entry) bool {
	return slices.ContainsFunc(heirs, func(h record) bool {
		return slices.ContainsFunc(h.Files, func(f entry) bool { return f.Name == e.Name })
	})
}

// gone reports whether somebody has taken out every line of ours already.
func gone(e entry, now content) bool {
	if now.Kind != file || e.After.Kind != file {
		return false
	}
	if bytes.Contains(now.data, []byte(Handler)) && !bytes.Contains(e.Before.data, []byte(Handler)) {
		return false // in one line with what is theirs
	}
	theirs := map[string]bool{"": true}
	for line := range bytes.Lines(e.Before.data) {
		theirs[string(bytes.TrimSpace(line))] = true
	}
	ours := map[string]bool{}
	for line := range bytes.Lines(e.After.data) {
		if line := string(bytes.TrimSpace(line)); !theirs[line] {
			ours[line] = true
		}
	}
	for line := range bytes.Lines(now.data) {
		if ours[string(bytes.TrimSpace(line))] {
			return false
		}
	}
	return true
}

// withoutOurs is a file that others have changed since without what is ours in it: line by line where our lines stand as we
// wrote them, else key by key. It reports false where that cannot be told.
func withoutOurs(e entry, now content) (content, bool) {
	if now.Kind != file || e.After.Kind != file || e.Shared && e.Before.Kind == nothing { // our own is the administrator's by now
		return now, false
	}
	data, ok := withdraw(now.data, e.After.data, e.Before.data)
	if _, _, err := parse(e.Path, data); !ok || err != nil && !isTemplate(e.Path) || e.Before.Kind == nothing {
		if data, ok = takeBack(e.Path, now.data, e.After.data, e.Before.data); !ok {
			return now, false
		}
	}
	data = withoutGoneDefault(e.Path, data, e.Before.data)
	if _, tree, err := parse(e.Path, data); err == nil && len(tree) == 0 && e.Before.Kind == nothing {
		return content{Kind: nothing}, true
	}
	return newFile(data, now), true
}

// withdraw takes one change out of a text that others have changed too: what led from before to after is led back in now.
// It reports false where a place of the change cannot be found, or not for sure.
func withdraw(now, after, before []byte) ([]byte, bool) {
	for _, h := range hunks(after, before) {
		if len(h.old) == 0 || bytes.Count(now, h.old) != 1 {
			return nil, false
		}
		now = bytes.Replace(now, h.old, h.new, 1)
	}
	return now, true
}

// StateDir is where the records lie, by our configuration.
func StateDir(o Options) (string, error) {
	p := Plan{options: o, system: system{root: o.Root}}
	if _, err := p.ourConfig(); err != nil {
		return "", err
	}
	return p.Policy.StateDir, nil
}
