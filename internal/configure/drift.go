package configure

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Default is how an engine that was configured with --as-default stands to that now, by its
// configuration files.
type Default struct {
	Engine  grant.Engine
	Name    string // as `gpuledger configure` takes it
	File    string // the engine's main configuration file
	Handler string // of containers that choose none; "" where no file says
	Program string // behind that handler; "" where no file says
	Ours    bool   // that is our program, whatever the handler's name
	Err     error  // the files, or what configure keeps of them, cannot be read: nothing is known
}

// Problem is a sentence for the administrator, without what to do; "" where nothing is wrong, or
// nothing is known.
func (d Default) Problem() string {
	const around = "containers that choose none go around the ledger"
	switch {
	case d.Ours || d.Err != nil:
		return ""
	case d.Handler == Handler:
		return fmt.Sprintf("%s: its default handler %s runs %q by %s, and not %s: %s",
			d.Engine, Handler, d.Program, d.File, ourProgram, around)
	case d.Handler == "":
		return fmt.Sprintf("%s: %s names no default handler any more: %s", d.Engine, d.File, around)
	}
	return fmt.Sprintf("%s: %s names %q as its default handler and not %s: %s",
		d.Engine, d.File, d.Handler, Handler, around)
}

// Hint is what to do about a problem.
func (d Default) Hint() string {
	return fmt.Sprintf("somebody has changed it since: run `gpuledger configure %s --as-default --restart`, "+
		"or `--undo` if that is meant", d.Name)
}

// Defaults looks at the engines of the system below root that were configured with --as-default, by
// what configure keeps below the state directory. It takes no lock: whoever reads while configure
// writes can see a moment between two files.
func Defaults(root, stateDir string) ([]Default, error) {
	here := system{root: root}
	dir, err := here.resolve(stateDir)
	if err != nil {
		return nil, err
	}
	s := &store{system: here, dir: filepath.Join(here.host(dir), "configure")}
	var all []Default
	for _, engine := range containerEngines {
		r, err := s.load(engine)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			all = append(all, Default{Engine: engine, Name: engines[engine].suffix, Err: err})
			continue
		}
		if !slices.ContainsFunc(r.Files, func(e entry) bool { return !e.Shared && setsDefault(engine, e.After.data) }) {
			continue
		}
		if d, runs := here.defaultOf(engine, r); runs {
			all = append(all, d)
		}
	}
	return all, nil
}

// defaultOf reads an engine's files. runs is false where by these it runs no containers of its own.
func (s system) defaultOf(engine grant.Engine, r record) (d Default, runs bool) {
	p := &Plan{options: Options{Engine: engine, Root: s.root}, system: s}
	d = Default{Engine: engine, Name: engines[engine].suffix}
	if p.options.File, d.Err = p.findMain(r); d.Err != nil {
		return d, true
	}
	d.File = p.mainFile()
	c, err := engines[engine].read(p)
	facts := c.inForce()
	d.Handler, d.Program, d.Err = facts.byDefault, facts.handlers[facts.byDefault], err
	d.Ours = err == nil && strings.HasPrefix(filepath.Base(d.Program), ourProgram)
	return d, !facts.absent
}

// defaultKeys are what engines call their default handler; k3s and RKE2 have a setting of their own.
var defaultKeys = map[grant.Engine]string{
	grant.Containerd: "(?:default_runtime_name|default-runtime)", grant.CRIO: "default_runtime", grant.Podman: "runtime",
	grant.Docker: "default-runtime",
}

// setsDefault reports whether a file that configure has written makes our handler the default. It
// looks at lines: such a file can be a template, which is no TOML.
func setsDefault(engine grant.Engine, text []byte) bool {
	line := `(?m)^[^#\n]*\b` + defaultKeys[engine] + `["']?\s*[=:]\s*["']?` + Handler + `(?:["'\s]|$)`
	return regexp.MustCompile(line).Match(text)
}
