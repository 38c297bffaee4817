package configure

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// ourProgram is the wrapper's name, with which the names of the links to it begin.
const ourProgram = "gpuledger-runtime"

// record is what configure has done before for this engine, empty where nothing, and which other engines it has configured.
func (p *Plan) record() (record, []grant.Engine, error) {
	dir, err := p.system.resolve(p.Policy.StateDir)
	if err != nil {
		return record{}, nil, err
	}
	var others []grant.Engine
	for _, e := range containerEngines {
		if e != p.options.Engine && p.system.exists(filepath.Join(dir, "configure", engines[e].suffix, "record.json")) {
			others = append(others, e)
		}
	}
	r, err := (&store{system: p.system, dir: filepath.Join(p.system.host(dir), "configure")}).load(p.options.Engine)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return r, others, err
}

var containerEngines = []grant.Engine{grant.Containerd, grant.CRIO, grant.Podman, grant.Docker}

// before is what is present in the engine without us: by its files as an undo would leave them.
func (p *Plan) before(r record) (present, error) {
	without, mended, err := p.undone(r)
	if err != nil {
		return present{}, err
	}
	p.former = without.former
	for _, c := range mended {
		p.note("%s has a copy of what is ours; --undo takes it out there, too", c.Path)
	}
	c, err := engines[p.options.Engine].read(without)
	if err != nil {
		return present{}, err
	}
	return p.known(c.present(without)), nil
}

// undone is a plan that sees the engine's files as an undo would leave them, with those of other programs into which what is
// ours was copied.
func (p *Plan) undone(r record) (*Plan, []Change, error) {
	q := &Plan{options: p.options, Policy: p.Policy, system: system{root: p.system.root, over: map[string]content{}}}
	var err error
	if q.options.File, err = p.findMain(r); err != nil {
		return nil, nil, err
	}
	var recorded []string
	for _, e := range r.Files {
		now, err := p.system.read(e.Name)
		if err != nil {
			return nil, nil, err
		}
		if e.Shared || e.After.Kind != file {
			continue
		}
		recorded = append(recorded, e.Name)
		q.system.over[e.Name] = restore(e, now).after
	}
	c, _ := engines[p.options.Engine].read(q) // what cannot be read is nothing that a program has copied into
	if q.former = q.formerDefault(c); q.former == "" {
		q.former = r.Default // the file that named it may be the one that has ours now
	}
	var mended []Change
	for _, path := range c.paths() {
		change, err := q.mend(path, r)
		if err != nil {
			return nil, nil, err
		}
		written := q.place() != nil && path == q.mainFile() // by the distribution, anew at its next start
		if change != nil && !written && !slices.Contains(recorded, change.name) && (len(r.Files) > 0 || !q.isOurs(path)) {
			mended = append(mended, *change)
			q.system.over[change.name] = change.after
		}
	}
	return q, mended, nil
}

// isOurs reports whether configure itself writes to a file.
func (p *Plan) isOurs(path string) bool {
	return path == p.mainFile() || strings.HasPrefix(filepath.Base(path), dropIn)
}

// formerDefault is the last default handler that a file names beside ours.
func (p *Plan) formerDefault(c configuration) (name string) {
	for _, path := range c.paths() {
		_, text, _ := p.load(path)
		d, _, err := parse(path, text.data)
		if err != nil {
			continue
		}
		for _, k := range engines[p.options.Engine].keys {
			if v, _ := d.get(k.byDefault...); v != nil && v != Handler {
				name, _ = v.(string)
			}
		}
	}
	return name
}

// mend takes what is ours out of a file into which another program has copied it, with the rest of an edit that it has copied.
// nil where our handler is not in it.
func (p *Plan) mend(path string, r record) (*Change, error) {
	name, now, err := p.load(path)
	if err != nil || now.Kind != file {
		return nil, err
	}
	data, err := p.withoutHandler(path, now.data)
	if err != nil || bytes.Equal(data, now.data) {
		return nil, nil // what cannot be edited is found by named
	}
	for _, e := range r.Files {
		if e.Before.Kind != file || e.After.Kind != file || e.Shared {
			continue
		}
		if more, ok := takeBack(path, data, e.After.data, e.Before.data); ok {
			data = more
		}
	}
	return &Change{Path: path, Action: "restore", Why: "another program has copied what is ours into it; it is taken out",
		Diff: unified(path, now.data, data), name: name, before: now, after: newFile(data, now)}, nil
}

// withoutHandler is a file without our handler, and with the former default in its place.
func (p *Plan) withoutHandler(path string, text []byte) ([]byte, error) {
	d, _, err := parse(path, text)
	if err != nil {
		return nil, err
	}
	for _, k := range engines[p.options.Engine].keys {
		if v, _ := d.get(k.byDefault...); v == Handler && p.former != "" {
			err = errors.Join(err, d.set(p.former, k.byDefault...))
		} else if v == Handler {
			err = errors.Join(err, d.unset(k.byDefault...))
		}
		err = errors.Join(err, d.unset(append(slices.Clip(k.handlers), Handler)...))
	}
	return d.bytes(), err
}

// oursIn matches what names us in an engine's file: our program, our handler as the default, and our handler's tables.
var oursIn = regexp.MustCompile(ourProgram + `|["']` + Handler + `["']|\.` + Handler + `[].]`)

// named are the places in an engine's files, as the plan sees them, that name us, as "file:line", whether or not the engine
// could read them; and those by which NVIDIA's runtime would become ours.
func (p *Plan) named() (places []string) {
	c, _ := engines[p.options.Engine].read(p)
	for _, path := range union(c.paths(), filepath.Join("/etc", nvidiaConfig), "/usr/local/nvidia/toolkit/.config/"+nvidiaConfig) {
		_, text, err := p.load(path)
		if err != nil {
			continue
		}
		for i, line := range strings.Split(string(text.data), "\n") {
			if oursIn.MatchString(line) && !strings.HasPrefix(strings.TrimSpace(line), "#") {
				places = append(places, fmt.Sprintf("%s:%d", path, i+1))
			}
		}
	}
	return places
}
