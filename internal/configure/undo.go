package configure

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// Undone is what an undo did, or would do.
type Undone struct {
	Changes []FileChange // each with the action restore, remove, edit or keep
	Kept    int          // files in which gpuledger's lines cannot be told apart from what others changed
	Named   []string     // lines of the engine's files, as "file:line", that name gpuledger all the same
	Advice  string       // what to do about the lines of Named

	Callers  []grant.Process // daemons that call gpuledger's runtime until they read their files again
	Monitors []grant.Process // of containers that need the handler, or the link that configure made
	Stored   []string        // containers, also stopped ones, that the engine starts only by the handler

	engine       grant.Engine
	needsHandler bool // the engine finds the runtime of a container by its handler's name
	// why gpuledger's own configuration stays: a program obeys it; see policyReader
	reader string

	// at a restart the engine's distribution writes the file anew that still names gpuledger
	rewrote bool
}

// Undo restores the bytes, the mode and the owner of every file. The engine's files come first,
// because they need the others. It also takes gpuledger's lines out of files into which another
// program has copied them. It can be repeated. With dry it only reports. It returns an error if
// there is no record for an engine whose files name gpuledger's runtime.
func Undo(o Options, stateDir string, dry bool) (Undone, error) {
	in := o.Installation()
	r, u, err := planUndo(o, stateDir)
	if err != nil {
		return Undone{}, err
	}
	if r.isOver() && len(u.Changes) == 0 {
		return u, unrecorded(o, stateDir, u.Named)
	}
	s, err := openStore(in.System, stateDir)
	if err != nil {
		return Undone{}, err
	}
	defer s.close()
	if r, u, err = planUndo(o, stateDir); err != nil { // under the lock no other call changes it
		return Undone{}, err
	}
	receivers, err := s.planFiles(r, &u)
	if err == nil && !dry {
		err = s.undo(r, u, receivers)
	}
	if err == nil && len(r.Files) == 0 {
		err = unrecorded(o, stateDir, u.Named)
	}
	return u, err
}

// planUndo is the record, and what an undo does to other programs' files.
func planUndo(o Options, stateDir string) (engineRecord, Undone, error) {
	in := o.Installation()
	r, _, err := readRecord(in, stateDir)
	if err != nil {
		return r, Undone{}, err
	}
	r.Engine = in.Engine
	without, err := withoutUs(in, r)
	if err != nil {
		return r, Undone{}, err
	}
	u := Undone{Changes: without.cleaned, Named: linesNamingUs(without.in),
		Advice: "take that out by hand and run it again"}
	u.engine, u.Callers = r.Engine, callers(r, daemonsOf(in), o.Restarted)
	u.needsHandler = in.NeedsHandler()
	u.Monitors, u.Stored = r.monitors(in), r.stored(in)
	if distribution := without.in.Distribution(); distribution != nil {
		u.Advice, u.rewrote = "restart "+distribution.Name+
			", which writes that file anew, and run it again", true
	}
	return r, u, nil
}

// unrecorded is an error that names the lines with gpuledger's runtime in an engine's files, if
// there are any. They were written by hand, or the records are lost.
func unrecorded(o Options, stateDir string, lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("cannot undo: %s keeps nothing of `configure` for %s, whose files name %s all the "+
		"same: %s; take it out there by hand", stateDir, o.Engine,
		ourProgram, strings.Join(lines, ", "))
}

// planFiles adds to u what an undo does to each file of a record, the last one first. It returns
// the records of other engines that take files over.
func (s *store) planFiles(r engineRecord, u *Undone) ([]engineRecord, error) {
	others, err := s.others(r.Engine)
	if err != nil {
		return nil, err
	}
	var receivers []engineRecord
	for _, e := range slices.Backward(r.Files) {
		now, err := s.system.Read(e.Name)
		if err != nil {
			return nil, err
		}
		if neededByOthers(e, others) {
			receivers = handOver(receivers, r, others, e)
			u.Changes = append(u.Changes, keepChange(e, now, fmt.Sprintf("%s needs it", others[0].Engine)))
			continue
		}
		c := restore(e, now)
		if e.Shared && c.Action != "keep" {
			u.reader = policyReader(s.system, now, c.after)
		}
		switch {
		case u.Kept > 0, len(u.Named) > 0 && (e.Shared || e.After.Kind == filetree.Link):
			// an engine whose file still names the link must find it
			c = keepChange(e, now, "a file that stays needs it")
		case c.Action != "keep" && len(u.Callers)+len(u.Monitors)+len(u.Stored) > 0 &&
			(e.Shared || e.After.Kind == filetree.Link):
			c = keepChange(e, now, u.whyKept())
		case e.Shared && u.reader != "":
			c = keepChange(e, now, u.reader)
		case c.Action != "keep" && u.keepsHandler():
			if c, err = onlyHandler(e, now, c.after, u); err != nil {
				return nil, err
			}
		case c.Action == "keep" && c.Why != "" && e.Shared:
			c.Why = "it has been changed since; no engine needs it any more"
		case c.Action == "keep" && c.Why != "":
			c.Why += fmt.Sprintf("; the original lies in %s", s.original(r, e))
			u.Kept++
		}
		u.Changes = append(u.Changes, c)
	}
	return receivers, nil
}

// recordedDaemons are the daemons that the record names after the undo. While the engine's files
// still name gpuledger, a daemon that starts reads them. The record then keeps its old lists.
func (u Undone) recordedDaemons(r engineRecord) (unread, undone []grant.Process) {
	if u.Kept > 0 || u.keepsHandler() || len(u.Named) > 0 && !u.rewrote {
		return r.Unread, r.Undone
	}
	return nil, append([]grant.Process{}, u.Callers...)
}

// needsUs reports whether the engine's files still name gpuledger, or a program or a container
// still needs it.
func (u Undone) needsUs() bool {
	return u.Kept > 0 || len(u.Named) > 0 || len(u.Callers) > 0 || len(u.Monitors) > 0 ||
		len(u.Stored) > 0 || u.reader != ""
}

// original is the path of a file's content from before configure.
func (s *store) original(r engineRecord, e fileRecord) string {
	if e.Before.Kind != filetree.Regular {
		return "no file: there was none"
	}
	return s.engineDir(r.Engine) + "/" + e.Before.SHA256
}

// neededByOthers reports whether another engine still needs a file. If another engine's change is
// below this one, the file goes back to that engine's state instead.
func neededByOthers(e fileRecord, others []engineRecord) bool {
	return e.Shared && len(others) > 0 && !slices.ContainsFunc(others, func(o engineRecord) bool {
		return slices.ContainsFunc(o.Files,
			func(f fileRecord) bool { return f.Name == e.Name && f.After.Same(e.Before) })
	})
}

// handOver gives a file to another engine's record. That engine's undo then restores the state from
// before both.
func handOver(receivers []engineRecord, from engineRecord, others []engineRecord,
	e fileRecord) []engineRecord {
	receiver := others[0]
	for _, o := range others { // the one that has changed it too, if any
		if slices.ContainsFunc(o.Files, func(f fileRecord) bool { return f.Name == e.Name }) {
			receiver = o
		}
	}
	i := slices.IndexFunc(receivers, func(h engineRecord) bool { return h.Engine == receiver.Engine })
	if i < 0 {
		receiver.Files = slices.Clone(receiver.Files)
		receivers, i = append(receivers, receiver), len(receivers)
	}
	h := &receivers[i]
	for _, dir := range from.Directories {
		if strings.HasPrefix(e.Name, dir+"/") {
			h.Directories = configfile.Union(h.Directories, dir)
		}
	}
	switch at := slices.IndexFunc(h.Files, func(f fileRecord) bool { return f.Name == e.Name }); {
	case at < 0:
		h.Files = slices.Insert(h.Files, 0, e)
	case h.Files[at].Before.Same(e.After): // the other engine changed it after this one
		h.Files[at].Before = e.original(h.Files[at].Before)
	}
	return receivers
}

func keepChange(e fileRecord, now filetree.FileContent, why string) FileChange {
	return FileChange{Path: e.Path, Action: "keep", Why: why, name: e.Name, before: now, after: now}
}

// restore is what an undo does to a file with the present content now.
func restore(e fileRecord, now filetree.FileContent) FileChange {
	c := FileChange{Path: e.Path, name: e.Name, before: now, after: e.original(now), Action: "restore"}
	if e.Before.Kind == filetree.Nothing {
		c.Action = "remove"
	}
	switch {
	case now.Same(e.Before), now.Kind == filetree.Nothing, hasNoneOfOurs(e, now):
		return keepChange(e, now, "")
	case now.Same(e.After) && !e.Mixed:
	default:
		after, ok := withoutOurs(e, now)
		if !ok || e.Mixed {
			return keepChange(e, now, "it has been changed since; take out what is ours by hand")
		}
		c.Why = whyEdited(e, now, after)
		c.after = after
		if after.Kind != filetree.Nothing {
			c.Action = "restore"
		}
	}
	c.Diff = diff(e.Path, now.Data, c.after.Data)
	return c
}

// whyEdited says what an undo does to a file that has been changed since.
func whyEdited(e fileRecord, now, after filetree.FileContent) string {
	if e.isCopy() {
		why := "it has been changed since"
		if keys, _ := configfile.Differing(e.Path, now.Data, e.After.Data); len(keys) > 0 {
			why += " (" + strings.Join(keys, ", ") + ")"
		}
		return why + "; its copy of other files is removed, because a part of it would replace what they say"
	}
	why := "it has been changed since; only our lines are taken out"
	if keepsBuiltIn(e, after.Data) {
		why += "; the handler runc stays, because containerd needs it beside the other handlers"
	}
	return why
}

// original is a file from before configure. Its mode, user, group and ACL are those that the file
// has now, where someone has changed them since.
func (e fileRecord) original(now filetree.FileContent) filetree.FileContent {
	c := e.Before
	if c.Kind != filetree.Regular || now.Kind != filetree.Regular || e.After.Kind != filetree.Regular {
		return c
	}
	if now.Mode != e.After.Mode {
		c.Mode = now.Mode
	}
	if now.UID != e.After.UID {
		c.UID = now.UID
	}
	if now.GID != e.After.GID {
		c.GID = now.GID
	}
	if !bytes.Equal(now.ACL, e.After.ACL) {
		c.ACL = now.ACL
	}
	return c
}

// undo carries out the changes, and then removes what is done from the record.
func (s *store) undo(r engineRecord, u Undone, receivers []engineRecord) error {
	for _, h := range receivers {
		if err := s.save(h); err != nil {
			return fmt.Errorf("cannot hand files over to %s: %w", h.Engine, err)
		}
		failpoint.Hit("configure/inherited")
	}
	for _, c := range u.Changes {
		if c.Action == "keep" {
			continue
		}
		if err := writeContent(s.system, c.name, c.after); err != nil {
			return err
		}
		failpoint.Hit("configure/restored")
	}
	removeDirs(s.system, r.Directories, nil)
	kept := engineRecord{Version: 1, Engine: r.Engine, Main: r.Main, Found: r.Found, Default: r.Default,
		Directories: r.Directories}
	kept.Unread, kept.Undone = u.recordedDaemons(r)
	for _, e := range r.Files {
		i := slices.IndexFunc(u.Changes, func(c FileChange) bool { return c.name == e.Name })
		c := u.Changes[i]
		if c.Action == "edit" {
			e.After = c.after
			kept.Files = append(kept.Files, e)
		}
		if c.Action == "keep" && c.Why != "" && !handedOver(receivers, e) && (!e.Shared || u.needsUs()) {
			kept.Files = append(kept.Files, e)
		}
	}
	if err := s.save(kept); err != nil {
		return fmt.Errorf("cannot forget what is undone: %w", err)
	}
	failpoint.Hit("configure/forgotten")
	return nil
}

func handedOver(receivers []engineRecord, e fileRecord) bool {
	return slices.ContainsFunc(receivers, func(h engineRecord) bool {
		return slices.ContainsFunc(h.Files, func(f fileRecord) bool { return f.Name == e.Name })
	})
}

// hasNoneOfOurs reports whether all of gpuledger's lines are already taken out of a file.
func hasNoneOfOurs(e fileRecord, now filetree.FileContent) bool {
	if now.Kind != filetree.Regular || e.After.Kind != filetree.Regular {
		return false
	}
	handler := []byte(engines.Handler)
	if bytes.Contains(now.Data, handler) && !bytes.Contains(e.Before.Data, handler) {
		return false // a line has both gpuledger's handler and something of others
	}
	theirs := map[string]bool{"": true}
	for line := range bytes.Lines(e.Before.Data) {
		theirs[string(bytes.TrimSpace(line))] = true
	}
	ours := map[string]bool{}
	for line := range bytes.Lines(e.After.Data) {
		if line := string(bytes.TrimSpace(line)); !theirs[line] {
			ours[line] = true
		}
	}
	for line := range bytes.Lines(now.Data) {
		if ours[string(bytes.TrimSpace(line))] {
			return false
		}
	}
	return true
}

// withoutOurs is a file that others have changed since, without gpuledger's lines. It works line by
// line if those lines are as configure wrote them, else key by key. It returns false if neither
// works. Nothing is left of a copy of other files.
func withoutOurs(e fileRecord, now filetree.FileContent) (filetree.FileContent, bool) {
	// gpuledger's own configuration belongs to the administrator by now
	isNew := e.Before.Kind == filetree.Nothing
	if now.Kind != filetree.Regular || e.After.Kind != filetree.Regular || e.Shared && isNew {
		return now, false
	}
	if e.isCopy() {
		return withoutCopy(e, now)
	}
	data, ok := configfile.RevertLines(now.Data, e.After.Data, e.Before.Data)
	if _, err := configfile.Parse(e.Path, data); !ok || err != nil && !isTemplate(e.Path) ||
		e.Before.Kind == filetree.Nothing {
		data, ok = configfile.RevertKeys(e.Path, now.Data, e.After.Data, e.Before.Data, engines.Handler)
		if !ok {
			return now, false
		}
	}
	data = withVersion(e, withBuiltIn(e, withoutGoneDefault(e.Path, data, e.Before.Data)))
	if d, err := configfile.Parse(e.Path, data); err == nil && len(d.Tree()) == 0 && isNew {
		return filetree.FileContent{Kind: filetree.Nothing}, true
	}
	return filetree.NewFile(data, now), true
}

// withoutCopy is a file without the plugins' tables that gpuledger has copied into it. It is
// Nothing if only the file's version is left.
func withoutCopy(e fileRecord, now filetree.FileContent) (filetree.FileContent, bool) {
	d, err := configfile.Parse(e.Path, now.Data)
	copied, bad := configfile.Parse(e.Path, e.After.Data)
	if err != nil || bad != nil {
		return now, false
	}
	plugins, _ := copied.Tree()["plugins"].(map[string]any)
	for name := range plugins {
		err = errors.Join(err, d.Unset("plugins", name))
	}
	left := slices.DeleteFunc(slices.Collect(maps.Keys(d.Tree())),
		func(name string) bool { return name == "version" })
	switch {
	case err != nil:
		return now, false
	case len(left) == 0:
		return filetree.FileContent{Kind: filetree.Nothing}, true
	}
	return filetree.NewFile(d.Bytes(), now), true
}

// StateDir is the state directory that gpuledger's configuration names.
func StateDir(o Options) (string, error) {
	own, err := readOwnConfig(o.Installation().System, o.Config)
	if err != nil {
		return "", err
	}
	return own.policy.StateDir, nil
}

// File is the engine's main configuration file, as configure finds it; "" for the usual one.
func File(o Options, stateDir string) (string, error) {
	in := o.Installation()
	r, _, err := readRecord(in, stateDir)
	if err != nil {
		return "", err
	}
	return r.mainFile(in)
}
