package configure

import (
	"fmt"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// Handler is the name of gpuledger's runtime handler in every engine.
const Handler = "gpuledger"

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
}

// Change is what a plan does to one file.
type Change struct {
	Path   string // as the engine names it
	Action string // create, edit, link, remove, restore, or keep with Why
	Diff   string // a unified diff; "" for a link
	Why    string

	name          string // Path without symbolic links
	shared        bool   // as in entry
	before, after filetree.FileContent
}

// Plan is the changes that Apply makes.
type Plan struct {
	Changes []Change
	Notes   []string     // what the administrator should know
	Policy  grant.Policy // in force after the plan is applied
	File    string       // the engine's main configuration file; "" for the usual one
	// the directories in which the real runtime keeps the state of this engine's containers
	Roots []string

	options Options
	system  filetree.System
	// the default handler that the engine's files name beside gpuledger's; "" if they name none
	former string
}

// New computes a plan and writes nothing. An error names the file, and the line if there is one.
func New(o Options) (*Plan, error) {
	p := &Plan{options: o, system: filetree.System{Root: o.Root}}
	ours, err := p.ourConfig()
	if err != nil {
		return nil, err
	}
	r, others, err := p.record()
	if err != nil {
		return nil, err
	}
	if p.options.File, err = p.findMain(r); err != nil {
		return nil, err
	}
	p.File = p.options.File
	if err := p.linkRuntime(); err != nil {
		return nil, err
	}
	was, err := p.before(r)
	if err != nil {
		return nil, err
	}
	if err := p.mayReplace(was); err != nil {
		return nil, err
	}
	c, err := engines[o.Engine].read(p)
	if err != nil {
		return nil, err
	}
	if err := c.edit(p, was); err != nil {
		return nil, err
	}
	p.Roots = was.roots
	p.noteOthers()
	if err := p.planConfig(ours, was, others); err != nil {
		return nil, err
	}
	return p, nil
}

// engine is what differs between engines.
type engine struct {
	suffix  string // of the link to the wrapper, which learns its engine from it
	program string // its program
	file    string // its main configuration file
	unit    string // the service of systemd
	daemon  string // the name of its process; "" if it has none
	keys    []keys // the keys by which its files name handlers
	read    func(*Plan) (configuration, error)
}

// keys are the paths of an engine's table of handlers and of the key for its default handler.
type keys struct{ handlers, byDefault []string }

// configuration is an engine's configuration as the engine reads it, as far as it can be read.
type configuration interface {
	// paths are the files that the engine reads.
	paths() []string
	// inForce is what the files say.
	inForce() engineFacts
	// defaultHandler is the handler of containers that choose none.
	defaultHandler(*Plan) defaultHandler
	// edit plans the changes that put gpuledger into the files. was is the default handler without
	// gpuledger.
	edit(p *Plan, was defaultHandler) error
}

// engines is set by init, because the functions in it use it.
var engines map[grant.Engine]engine

func init() {
	engines = map[grant.Engine]engine{
		grant.Containerd: {"containerd", "containerd", "/etc/containerd/config.toml", "containerd.service",
			"containerd", containerdKeys, readContainerd},
		grant.CRIO:   {"crio", "crio", "/etc/crio/crio.conf", "crio.service", "crio", crioKeys, readCRIO},
		grant.Podman: {"podman", "podman", "/etc/containers/containers.conf", "", "", podmanKeys, readPodman},
		grant.Docker: {"docker", "dockerd", "/etc/docker/daemon.json", "docker.service", "dockerd",
			dockerKeys, readDocker},
	}
}

func (p *Plan) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// mainFile is the engine's main configuration file.
func (p *Plan) mainFile() string {
	if p.options.File != "" {
		return p.options.File
	}
	return engines[p.options.Engine].file
}

// loadTOML reads a TOML file. A missing one is empty.
func (p *Plan) loadTOML(path string) (*configfile.TOML, error) {
	_, c, err := p.system.Load(path)
	if err != nil {
		return nil, err
	}
	d, err := configfile.ParseTOML(c.Data)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s:%w", path, err)
	}
	return d, nil
}

// addHeader puts a comment into a new file that says which command wrote it.
func (p *Plan) addHeader(d *configfile.TOML) error {
	if len(d.Bytes()) > 0 {
		return nil
	}
	name := engines[p.options.Engine].suffix
	signed, err := configfile.ParseTOML(fmt.Appendf(nil,
		"# Written by `gpuledger configure %s`; `gpuledger configure %s --undo` takes it away.\n", name,
		name))
	if err == nil {
		*d = *signed
	}
	return err
}

// change adds a file to the plan if its content differs. The engine's files come last, because they
// need the others.
func (p *Plan) change(path string, data []byte) error {
	name, before, err := p.system.Load(path)
	if err != nil {
		return err
	}
	after := filetree.NewFile(data, before)
	if before.Same(after) {
		return nil
	}
	c := Change{Path: path, Action: "edit", name: name, before: before, after: after,
		Diff: configfile.Unified(path, before.Data, data)}
	if before.Kind == filetree.Nothing {
		c.Action = "create"
	}
	p.Changes = append(p.Changes, c)
	return nil
}
