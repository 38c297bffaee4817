package configure

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Handler is the name of our runtime handler in every engine.
const Handler = "gpuledger"

// Options is what to configure.
type Options struct {
	Engine     grant.Engine
	Root       string           // "/", or where an image's tree lies; all other paths are those in it
	File       string           // the engine's main configuration file; "": where the engine looks
	Runtime    string           // gpuledger-runtime
	Config     string           // our own configuration file
	AsDefault  bool             // containers that choose no handler get ours too
	Restarted  bool             // of Undo: the engine has read its files since they were undone
	Mode       grant.RulesMode  // to write as policy.mode; "": leave it, or with AsDefault "report" where none is set
	Privileged grant.Privileged // the same of policy.privileged, with "strip"
}

// Change is one file of a plan.
type Change struct {
	Path   string // as the engine names it
	Action string // create, edit, link, remove, restore, or keep with Why
	Diff   string // unified; "" of a link
	Why    string

	name          string // Path without symbolic links
	shared        bool   // see entry
	before, after content
}

// Plan is what would be done.
type Plan struct {
	Changes []Change
	Notes   []string     // what the administrator should know
	Policy  grant.Policy // in force when the plan is done
	File    string       // the engine's main configuration file, "" for where the engine looks
	Roots   []string     // where the real runtime keeps the state of this engine's containers

	options Options
	system  system
	former  string // the default handler that the engine's files name beside ours, "" where they name none
}

// New computes a plan. Nothing is written. An error names the file and the line where there is one.
func New(o Options) (*Plan, error) {
	p := &Plan{options: o, system: system{root: o.Root}}
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
	if err := p.settle(ours, was, others); err != nil {
		return nil, err
	}
	return p, nil
}

// engine is what differs between engines.
type engine struct {
	suffix  string // of the wrapper's name, by which it knows who calls
	program string // its own
	file    string // its main configuration file
	unit    string // of systemd
	daemon  string // the process's name; "" where there is none
	keys    []keys // where its files name handlers
	read    func(*Plan) (configuration, error)
}

// keys are where a file of an engine names its handlers, and which of them containers get that choose none.
type keys struct{ handlers, byDefault []string }

// configuration is an engine's configuration as the engine reads it, as far as it can be read.
type configuration interface {
	// paths are the files that the engine reads.
	paths() []string
	// inForce is what the engine does by them.
	inForce() engineFacts
	// present is what containers run under that choose no handler.
	present(*Plan) present
	// edit enters what puts us into it. was is what is present without us.
	edit(p *Plan, was present) error
}

// engines is filled in by init, because the plans read it.
var engines map[grant.Engine]engine

func init() {
	engines = map[grant.Engine]engine{
		grant.Containerd: {"containerd", "containerd", "/etc/containerd/config.toml", "containerd.service", "containerd", containerdKeys, readContainerd},
		grant.CRIO:       {"crio", "crio", "/etc/crio/crio.conf", "crio.service", "crio", crioKeys, readCRIO},
		grant.Podman:     {"podman", "podman", "/etc/containers/containers.conf", "", "", podmanKeys, readPodman},
		grant.Docker:     {"docker", "dockerd", "/etc/docker/daemon.json", "docker.service", "dockerd", dockerKeys, readDocker},
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

// load reads a file of the system, following links.
func (p *Plan) load(path string) (name string, c content, err error) {
	if name, err = p.system.resolve(path); err == nil {
		c, err = p.system.read(name)
	}
	return name, c, err
}

// loadTOML reads a TOML file; a missing one is empty.
func (p *Plan) loadTOML(path string) (*tomlDocument, error) {
	_, c, err := p.load(path)
	if err != nil {
		return nil, err
	}
	d, err := parseTOML(c.data)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s:%w", path, err)
	}
	return d, nil
}

// sign says in a new file where it comes from.
func (p *Plan) sign(d *tomlDocument) error {
	if len(d.text) > 0 {
		return nil
	}
	name := engines[p.options.Engine].suffix
	signed, err := parseTOML(fmt.Appendf(nil, "# Written by `gpuledger configure %s`; `gpuledger configure %s --undo` takes it away.\n", name, name))
	if err == nil {
		*d = *signed
	}
	return err
}

// change enters what a file shall hold, if it holds something else. The engine's files come last: they need the others.
func (p *Plan) change(path string, data []byte) error {
	name, before, err := p.load(path)
	if err != nil {
		return err
	}
	after := newFile(data, before)
	if before.same(after) {
		return nil
	}
	c := Change{Path: path, Action: "edit", name: name, before: before, after: after, Diff: unified(path, before.data, data)}
	if before.Kind == nothing {
		c.Action = "create"
	}
	p.Changes = append(p.Changes, c)
	return nil
}

// unified shows a change, without the line that repeats the names.
func unified(path string, before, after []byte) string {
	old := path
	if len(before) == 0 {
		old = "/dev/null"
	}
	_, text, _ := bytes.Cut(diff.Diff(old, before, path, after), []byte("\n"))
	return string(text)
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
