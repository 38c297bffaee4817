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

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// ourProgram is the wrapper's name. The names of the links to it begin with it.
const ourProgram = "gpuledger-runtime"

// record is what configure has done for this engine, empty if nothing. It also returns the other
// engines that are configured.
func (p *Plan) record() (record, []grant.Engine, error) {
	dir, err := p.system.Resolve(p.Policy.StateDir)
	if err != nil {
		return record{}, nil, err
	}
	var others []grant.Engine
	for _, e := range containerEngines {
		if e != p.options.Engine &&
			p.system.Exists(filepath.Join(dir, "configure", engines[e].suffix, "record.json")) {
			others = append(others, e)
		}
	}
	r, err := (&store{system: p.system, dir: filepath.Join(p.system.Host(dir), "configure")}).load(
		p.options.Engine)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return r, others, err
}

var containerEngines = []grant.Engine{grant.Containerd, grant.CRIO, grant.Podman, grant.Docker}

// before is the engine's default handler without gpuledger: the one that the files name after an
// undo.
func (p *Plan) before(r record) (defaultHandler, error) {
	without, cleaned, err := p.afterUndo(r)
	if err != nil {
		return defaultHandler{}, err
	}
	p.former = without.former
	for _, c := range cleaned {
		p.note("%s has a copy of what is ours; --undo takes it out there, too", c.Path)
	}
	c, err := engines[p.options.Engine].read(without)
	if err != nil {
		return defaultHandler{}, err
	}
	return p.followLink(c.defaultHandler(without)), nil
}

// afterUndo is a plan that sees the engine's files as an undo would leave them. It also returns the
// changes to files into which another program has copied gpuledger's lines.
func (p *Plan) afterUndo(r record) (*Plan, []Change, error) {
	q := &Plan{options: p.options, Policy: p.Policy,
		system: filetree.System{Root: p.system.Root, Overlay: map[string]filetree.FileContent{}}}
	var err error
	if q.options.File, err = p.findMain(r); err != nil {
		return nil, nil, err
	}
	var recorded []string
	for _, e := range r.Files {
		now, err := p.system.Read(e.Name)
		if err != nil {
			return nil, nil, err
		}
		if e.Shared || e.After.Kind != filetree.Regular {
			continue
		}
		recorded = append(recorded, e.Name)
		q.system.Overlay[e.Name] = restore(e, now).after
	}
	// no program has copied anything into a file that cannot be read
	c, _ := engines[p.options.Engine].read(q)
	if q.former = q.formerDefault(c); q.former == "" {
		q.former = r.Default // gpuledger's handler may now stand in the file that named it
	}
	var cleaned []Change
	for _, path := range c.paths() {
		change, err := q.withoutCopies(path, r)
		if err != nil {
			return nil, nil, err
		}
		// the distribution writes it anew at its next start
		written := q.distribution() != nil && path == q.mainFile()
		if change != nil && !written && !slices.Contains(recorded, change.name) &&
			(len(r.Files) > 0 || !q.isOurs(path)) {
			cleaned = append(cleaned, *change)
			q.system.Overlay[change.name] = change.after
		}
	}
	return q, cleaned, nil
}

// isOurs reports whether configure itself writes to a file.
func (p *Plan) isOurs(path string) bool {
	return path == p.mainFile() || strings.HasPrefix(filepath.Base(path), dropIn)
}

// formerDefault is the last default handler in the files that is not gpuledger's.
func (p *Plan) formerDefault(c configuration) (name string) {
	for _, path := range c.paths() {
		_, text, _ := p.system.Load(path)
		d, err := configfile.Parse(path, text.Data)
		if err != nil {
			continue
		}
		for _, k := range engines[p.options.Engine].keys {
			if v, _ := d.Get(k.byDefault...); v != nil && v != Handler {
				name, _ = v.(string)
			}
		}
	}
	return name
}

// withoutCopies takes gpuledger's lines out of a file into which another program has copied them.
// It also takes out the copied rest of a recorded edit. It returns nil if the file has no handler
// of gpuledger's.
func (p *Plan) withoutCopies(path string, r record) (*Change, error) {
	name, now, err := p.system.Load(path)
	if err != nil || now.Kind != filetree.Regular {
		return nil, err
	}
	data, err := p.withoutHandler(path, now.Data)
	if err != nil || bytes.Equal(data, now.Data) {
		return nil, nil // linesNamingUs finds what cannot be edited
	}
	for _, e := range r.Files {
		if e.Before.Kind != filetree.Regular || e.After.Kind != filetree.Regular || e.Shared {
			continue
		}
		if more, ok := configfile.RevertKeys(path, data, e.After.Data, e.Before.Data, Handler); ok {
			data = more
		}
	}
	return &Change{Path: path, Action: "restore",
		Why:  "another program has copied what is ours into it; it is taken out",
		Diff: configfile.Unified(path, now.Data, data), name: name, before: now, after: filetree.NewFile(data, now)}, nil
}

// withoutHandler is a file without gpuledger's handler. The former default becomes the default
// again.
func (p *Plan) withoutHandler(path string, text []byte) ([]byte, error) {
	d, err := configfile.Parse(path, text)
	if err != nil {
		return nil, err
	}
	for _, k := range engines[p.options.Engine].keys {
		if v, _ := d.Get(k.byDefault...); v == Handler && p.former != "" {
			err = errors.Join(err, d.Set(p.former, k.byDefault...))
		} else if v == Handler {
			err = errors.Join(err, d.Unset(k.byDefault...))
		}
		err = errors.Join(err, d.Unset(append(slices.Clip(k.handlers), Handler)...))
	}
	return d.Bytes(), err
}

// oursIn matches gpuledger in an engine's file: its program, its handler as the default, and its
// handler's tables.
var oursIn = regexp.MustCompile(ourProgram + `|["']` + Handler + `["']|\.` + Handler + `[].]`)

// linesNamingUs are the lines, as "file:line", that name gpuledger in an engine's files as the plan
// sees them. It includes lines that the engine could not read. It includes the lines by which
// NVIDIA's runtime would run gpuledger's.
func (p *Plan) linesNamingUs() (lines []string) {
	c, _ := engines[p.options.Engine].read(p)
	for _, path := range configfile.Union(c.paths(), filepath.Join("/etc", nvidiaConfig),
		"/usr/local/nvidia/toolkit/.config/"+nvidiaConfig) {
		_, text, err := p.system.Load(path)
		if err != nil {
			continue
		}
		for i, line := range strings.Split(string(text.Data), "\n") {
			if oursIn.MatchString(line) && !strings.HasPrefix(strings.TrimSpace(line), "#") {
				lines = append(lines, fmt.Sprintf("%s:%d", path, i+1))
			}
		}
	}
	return lines
}
