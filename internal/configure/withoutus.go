package configure

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/filetree"
)

// engineWithoutUs is an engine with its files as an undo would leave them.
type engineWithoutUs struct {
	in engines.Installation
	// the default handler that the engine's files name beside gpuledger's; "" if they name none
	former string
	// changes to files into which another program has copied gpuledger's lines
	cleaned []FileChange
}

// withoutUs reads the engine's files as an undo would leave them.
func withoutUs(in engines.Installation, r engineRecord) (engineWithoutUs, error) {
	q := engineWithoutUs{in: in}
	q.in.System.Overlay = map[string]filetree.FileContent{}
	var err error
	if q.in.File, err = r.mainFile(in); err != nil {
		return q, err
	}
	var recorded []string
	for _, e := range r.Files {
		now, err := in.System.Read(e.Name)
		if err != nil {
			return q, err
		}
		if e.Shared || e.After.Kind != filetree.Regular {
			continue
		}
		recorded = append(recorded, e.Name)
		q.in.System.Overlay[e.Name] = restore(e, now).after
	}
	// no program has copied anything into a file that cannot be read
	c, _ := q.in.Read()
	if q.former = formerDefault(q.in, c); q.former == "" {
		q.former = r.Default // gpuledger's handler may now stand in the file that named it
	}
	for _, path := range c.Paths() {
		change, err := q.withoutCopies(path, r)
		if err != nil {
			return q, err
		}
		// the distribution writes it anew at its next start
		written := q.in.Distribution() != nil && path == q.in.MainFile()
		if change != nil && !written && !slices.Contains(recorded, change.name) &&
			(len(r.Files) > 0 || !isOurs(q.in, path)) {
			q.cleaned = append(q.cleaned, *change)
			q.in.System.Overlay[change.name] = change.after
		}
	}
	return q, nil
}

// defaultHandler is the handler of containers that choose none.
func (q engineWithoutUs) defaultHandler() (engines.DefaultHandler, error) {
	c, err := q.in.Read()
	if err != nil {
		return engines.DefaultHandler{}, err
	}
	return c.DefaultHandler().Follow(filetree.System{Root: q.in.System.Root}), nil
}

// notes are notes for the files into which another program has copied gpuledger's lines.
func (q engineWithoutUs) notes() (notes []string) {
	for _, c := range q.cleaned {
		notes = append(notes, c.Path+" has a copy of what is ours; --undo takes it out there, too")
	}
	return notes
}

// isOurs reports whether configure itself writes to a file.
func isOurs(in engines.Installation, path string) bool {
	return path == in.MainFile() || strings.HasPrefix(filepath.Base(path), engines.DropIn)
}

// formerDefault is the last default handler in the files that is not gpuledger's.
func formerDefault(in engines.Installation, c engines.Configuration) (name string) {
	for _, path := range c.Paths() {
		_, text, _ := in.System.Load(path)
		d, err := configfile.Parse(path, text.Data)
		if err != nil {
			continue
		}
		for _, k := range in.Of().Keys {
			if v, _ := d.Get(k.Default...); v != nil && v != engines.Handler {
				name, _ = v.(string)
			}
		}
	}
	return name
}

// withoutCopies takes gpuledger's lines out of a file into which another program has copied them.
// It also takes out the copied rest of a recorded edit. It returns nil if the file has no handler
// of gpuledger's, and does not import its file.
func (q engineWithoutUs) withoutCopies(path string, r engineRecord) (*FileChange, error) {
	name, now, err := q.in.System.Load(path)
	if err != nil || now.Kind != filetree.Regular {
		return nil, err
	}
	data, err := withoutHandler(q.in.Of().Keys, q.former, path, now.Data)
	if err == nil {
		data, err = q.withoutImport(path, data)
	}
	if err != nil || bytes.Equal(data, now.Data) {
		return nil, nil // linesNamingUs finds what cannot be edited
	}
	for _, e := range r.Files {
		if e.Before.Kind != filetree.Regular || e.After.Kind != filetree.Regular || e.Shared {
			continue
		}
		if more, ok := configfile.RevertKeys(path, data, e.After.Data, e.Before.Data, engines.Handler); ok {
			data = more
		}
	}
	return &FileChange{Path: path, Action: "restore",
		Why:  "another program has copied what is ours into it; it is taken out",
		Diff: diff(path, now.Data, data), name: name, before: now,
		after: filetree.NewFile(data, now)}, nil
}

// withoutHandler is a file without gpuledger's handler. The former default becomes the default
// again.
func withoutHandler(keys []engines.HandlerKeys, former, path string, text []byte) ([]byte, error) {
	d, err := configfile.Parse(path, text)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if v, _ := d.Get(k.Default...); v == engines.Handler && former != "" {
			err = errors.Join(err, d.Set(former, k.Default...))
		} else if v == engines.Handler {
			err = errors.Join(err, d.Unset(k.Default...))
		}
		err = errors.Join(err, d.Unset(append(slices.Clip(k.Handlers), engines.Handler)...))
	}
	return d.Bytes(), err
}

// withoutImport is a file that does not import gpuledger's file by name, if that is gone after an
// undo: containerd does not start with an import that is missing. `containerd config dump` of 1.x
// prints the names of all imported files in place of the patterns.
func (q engineWithoutUs) withoutImport(path string, text []byte) ([]byte, error) {
	d, err := configfile.Parse(path, text)
	if err != nil {
		return nil, err
	}
	imports, _ := configfile.Texts(d.Tree(), "imports")
	left := slices.DeleteFunc(slices.Clone(imports), func(name string) bool {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		_, c, err := q.in.System.Load(name)
		return filepath.Base(name) == engines.DropIn+".toml" && err == nil && c.Kind == filetree.Nothing
	})
	if len(left) < len(imports) {
		err = d.Set(left, "imports")
	}
	return d.Bytes(), err
}

// oursIn matches gpuledger in an engine's file: its program, its handler as the default, and its
// handler's tables.
var oursIn = regexp.MustCompile(ourProgram + `|["']` + engines.Handler + `["']|\.` + engines.Handler + `[].]`)

// linesNamingUs are the lines, as "file:line", that name gpuledger in an engine's files. It
// includes lines that the engine could not read. It includes the lines by which NVIDIA's runtime
// would run gpuledger's.
func linesNamingUs(in engines.Installation) (lines []string) {
	c, _ := in.Read()
	for _, path := range configfile.Union(c.Paths(), filepath.Join("/etc", nvidiaConfig),
		"/usr/local/nvidia/toolkit/.config/"+nvidiaConfig) {
		_, text, err := in.System.Load(path)
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
