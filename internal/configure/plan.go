package configure

import (
	"fmt"
	"slices"

	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// Options says what to configure, and how.
type Options struct {
	Engine    grant.Engine
	Root      string // "/", or the directory of an image's tree; all other paths are paths in it
	File      string // the engine's main configuration file; "": the usual one
	Runtime   string // the path of gpuledger-runtime
	Config    string // gpuledger's own configuration file
	AsDefault bool   // make gpuledger's handler the one of containers that choose none
	Restarted bool   // for Undo: the engine has read its files since they were undone
	// policy.mode to write; "": leave it, or with AsDefault write "report" if none is set
	Mode       grant.RulesMode
	Privileged grant.Privileged // policy.privileged to write; "": the same, with "strip"
	Ask        bool             // add the engine to ask.engines
}

// FileChange is what a plan does to one file.
type FileChange struct {
	Path   string // as the engine names it
	Action string // create, edit, link, remove, restore, or keep with Why
	Diff   string // a unified diff; "" for a link
	Why    string

	name          string // Path without symbolic links
	shared        bool   // as in fileRecord
	copies        bool   // as in fileRecord
	before, after filetree.FileContent
}

// Plan is the changes that Apply makes.
type Plan struct {
	Changes []FileChange
	Notes   []string     // what the administrator should know
	Policy  grant.Policy // in force after the plan is applied
	File    string       // the engine's main configuration file; "" for the usual one
	// an earlier configure with AsDefault made gpuledger's handler the default, and this one,
	// without AsDefault, leaves it so
	StillDefault bool
	// daemons of the engine that have run since before the last change, and have not read it
	Older []grant.Process
	// the directories in which the real runtime keeps the state of this engine's containers
	Roots []string

	in      engines.Installation
	former  string       // as in engineWithoutUs
	cleaned []FileChange // the same
	found   bool         // as in engineRecord
}

// Installation is the engine to configure.
func (o Options) Installation() engines.Installation {
	return engines.Installation{Engine: o.Engine, System: filetree.System{Root: o.Root}, File: o.File}
}

// New computes a plan and writes nothing. An error names the file, and the line if there is one.
func New(o Options) (*Plan, error) {
	in := o.Installation()
	own, err := readOwnConfig(in.System, o.Config)
	if err != nil {
		return nil, err
	}
	r, others, err := readRecord(in, own.policy.StateDir)
	if err != nil {
		return nil, err
	}
	if in.File, err = r.mainFile(in); err != nil {
		return nil, err
	}
	link, err := linkRuntime(in, o.Runtime)
	if err != nil {
		return nil, err
	}
	without, err := withoutUs(in, r)
	if err != nil {
		return nil, err
	}
	was, err := without.defaultHandler()
	if err != nil {
		return nil, err
	}
	if err := mayReplace(o, was); err != nil {
		return nil, err
	}
	p := &Plan{File: in.File, Roots: was.Roots, Notes: without.notes(), in: in, former: without.former,
		StillDefault: !o.AsDefault && r.setsDefault(), Older: older(r, daemonsOf(in)),
		cleaned: without.cleaned}
	p.found = o.File == "" && in.File != "" && (r.Main == "" || r.Found) && in.Distribution() == nil
	engine, changes, err := planEngine(o, in, own, was)
	if err != nil {
		return nil, err
	}
	p.Notes = append(append(p.Notes, engine.notes...), otherFileNotes(in)...)
	edited, err := editOwnConfig(o, in, own, was, others)
	if err != nil {
		return nil, err
	}
	p.Notes, p.Policy = append(p.Notes, edited.notes...), edited.policy
	// the engine's files come last, because they need the others
	if p.Changes, err = edited.changes(in.System); err != nil {
		return nil, err
	}
	p.Changes = slices.Concat(p.Changes, link, changes)
	return p, nil
}

// planEngine is what an engine's files get, and the changes to them.
func planEngine(o Options, in engines.Installation, own ownConfig,
	was engines.DefaultHandler) (fileEdits, []FileChange, error) {
	c, err := in.Read()
	if err != nil {
		return fileEdits{}, nil, err
	}
	e, err := editEngine(c, wanted{in: in, was: was, asDefault: o.AsDefault, link: wrapperLink(in, o.Runtime),
		config: o.Config, globs: globs(own.policy), runtimes: runtimesInForce(in.System, own, was)})
	if err != nil {
		return e, nil, err
	}
	changes, err := e.changes(in.System)
	return e, changes, err
}

// otherFileNotes are notes for the engine's running processes that read another file than the
// configured one.
func otherFileNotes(in engines.Installation) (notes []string) {
	for _, other := range in.OtherFiles() {
		notes = append(notes, fmt.Sprintf("%s (pid %d) reads %s, not %s: name it by --file", in.Engine,
			other.PID, grant.Printable(other.File), in.MainFile()))
	}
	return notes
}
