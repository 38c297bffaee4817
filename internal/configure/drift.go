package configure

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// Default says whether an engine that was configured with --as-default still has gpuledger as its
// default. It comes from the engine's configuration files.
type Default struct {
	Engine  grant.Engine
	Name    string // as `gpuledger configure` takes it
	File    string // the engine's main configuration file
	Handler string // for containers that choose none; "" if no file names it
	Program string // that the handler runs; "" if no file names it
	Ours    bool   // Program is gpuledger's, whatever the handler's name is
	Err     error  // the files, or configure's records, cannot be read: nothing is known
}

// Problem is a sentence for the administrator, without advice. It is "" if nothing is wrong, or
// nothing is known.
func (d Default) Problem() string {
	const around = "containers that choose none go around the ledger"
	switch {
	case d.Ours || d.Err != nil:
		return ""
	case d.Handler == engines.Handler:
		return fmt.Sprintf("%s: its default handler %s runs %q by %s, and not %s: %s",
			d.Engine, engines.Handler, d.Program, d.File, ourProgram, around)
	case d.Handler == "":
		return fmt.Sprintf("%s: %s names no default handler any more: %s", d.Engine, d.File, around)
	}
	return fmt.Sprintf("%s: %s names %q as its default handler and not %s: %s",
		d.Engine, d.File, d.Handler, engines.Handler, around)
}

// Hint is the advice that belongs to a problem.
func (d Default) Hint() string {
	return fmt.Sprintf("it has been changed since: run `gpuledger configure %s --as-default --restart`, "+
		"or `--undo` if that is meant", d.Name)
}

// Defaults reads the engines below root that were configured with --as-default. It finds them by
// the records below the state directory. It takes no lock, so a read during a configure can see the
// state between two files.
func Defaults(root, stateDir string) ([]Default, error) {
	here := filetree.System{Root: root}
	dir, err := here.Resolve(stateDir)
	if err != nil {
		return nil, err
	}
	s := &store{system: here, dir: filepath.Join(here.Host(dir), "configure")}
	var all []Default
	for _, engine := range engines.All {
		r, err := s.load(engine)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			all = append(all, Default{Engine: engine, Name: engines.Of(engine).Name, Err: err})
			continue
		}
		if !r.setsDefault() {
			continue
		}
		if d, runs := defaultOf(here, engine, r); runs {
			all = append(all, d)
		}
	}
	return all, nil
}

// setsDefault reports whether a file of the record makes gpuledger's handler the default.
func (r engineRecord) setsDefault() bool {
	return slices.ContainsFunc(r.Files, func(e fileRecord) bool {
		return !e.Shared && setsDefault(r.Engine, e.After.Data)
	})
}

// defaultOf reads an engine's files. runs is false if these say that the engine runs no containers
// of its own.
func defaultOf(system filetree.System, engine grant.Engine, r engineRecord) (d Default, runs bool) {
	in := engines.Installation{Engine: engine, System: system}
	d = Default{Engine: engine, Name: in.Of().Name}
	if in.File, d.Err = r.mainFile(in); d.Err != nil {
		return d, true
	}
	d.File = in.MainFile()
	c, err := in.Read()
	says := c.InForce()
	d.Handler, d.Program, d.Err = says.Default, says.Handlers[says.Default], err
	d.Ours = err == nil && strings.HasPrefix(filepath.Base(d.Program), ourProgram)
	return d, !says.Absent
}

// defaultKeys are the names of the key for the default handler, as regular expressions. k3s and
// RKE2 have a setting of their own.
var defaultKeys = map[grant.Engine]string{
	grant.Containerd: "(?:default_runtime_name|default-runtime)", grant.CRIO: "default_runtime",
	grant.Podman: "runtime",
	grant.Docker: "default-runtime",
}

// setsDefault reports whether a file that configure has written makes gpuledger's handler the
// default. It matches lines, because such a file can be a template, which is no TOML.
func setsDefault(engine grant.Engine, text []byte) bool {
	line := `(?m)^[^#\n]*\b` + defaultKeys[engine] + `["']?\s*[=:]\s*["']?` + engines.Handler + `(?:["'\s]|$)`
	return regexp.MustCompile(line).Match(text)
}
