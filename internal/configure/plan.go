package configure

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/policy"
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
	Roots   []string     // where the real runtime keeps the state of this engine's containers

	options Options
	system  system
}

// New computes a plan. Nothing is written. An error names the file and the line where there is one.
func New(o Options) (*Plan, error) {
	p := &Plan{options: o, system: system{o.Root}}
	ours, err := p.ourConfig()
	if err != nil {
		return nil, err
	}
	if err := p.linkRuntime(); err != nil {
		return nil, err
	}
	present, err := engines[o.Engine].plan(p)
	if err != nil {
		return nil, err
	}
	p.Roots = present.roots
	p.noteOthers()
	if err := p.settle(ours, present); err != nil {
		return nil, err
	}
	return p, nil
}

// engine is what differs between engines.
type engine struct {
	suffix string // of the wrapper's name, by which it knows who calls
	file   string // its main configuration file
	unit   string // of systemd
	daemon string // the process's name; "" where there is none
	plan   func(*Plan) (present, error)
}

// engines is filled in by init, because the plans read it.
var engines map[grant.Engine]engine

func init() {
	engines = map[grant.Engine]engine{
		grant.Containerd: {"containerd", "/etc/containerd/config.toml", "containerd.service", "containerd", (*Plan).containerd},
		grant.CRIO:       {"crio", "/etc/crio/crio.conf", "crio.service", "crio", (*Plan).crio},
		grant.Podman:     {"podman", "/etc/containers/containers.conf", "", "", (*Plan).podman},
		grant.Docker:     {"docker", "/etc/docker/daemon.json", "docker.service", "dockerd", (*Plan).docker},
	}
}

// present is what an engine runs containers with before it is configured.
type present struct {
	binary string   // of the default handler, "" where the engine finds it by itself
	search []string // the runtimes that the engine would look for by itself, if not those of our defaults
	roots  []string // where the state of its containers lies
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

// Link is the name by which the engine calls the wrapper.
func (p *Plan) link() string {
	return filepath.Join(filepath.Dir(p.options.Runtime), "gpuledger-runtime."+engines[p.options.Engine].suffix)
}

// linkRuntime makes the engine's own name for the wrapper. One that leads there already, as a package brings it, is kept.
func (p *Plan) linkRuntime() error {
	runtime, err := p.system.resolve(p.options.Runtime)
	if err != nil {
		return err
	}
	c, err := p.system.read(runtime)
	switch {
	case err != nil && !strings.Contains(err.Error(), "more than"): // a binary is larger than any configuration
		return err
	case c.Kind == nothing:
		return fmt.Errorf("cannot find %s: name the wrapper by --runtime", p.options.Runtime)
	}
	path := p.link()
	if leads, err := p.system.resolve(path); err != nil || leads == runtime {
		return err
	}
	dir, err := p.system.resolve(filepath.Dir(path))
	if err != nil {
		return err
	}
	name := filepath.Join(dir, filepath.Base(path))
	before, err := p.system.read(name)
	if err != nil {
		return err
	}
	if before.Kind == file {
		return fmt.Errorf("cannot make the link %s: a file is in its place", path)
	}
	p.Changes = append(p.Changes, Change{Path: path, Action: "link", name: name, before: before,
		after: content{Kind: linked, Target: filepath.Base(p.options.Runtime)}})
	return nil
}

// ourConfig reads our own configuration, which says how much of pod annotations we need.
func (p *Plan) ourConfig() (*tomlDocument, error) {
	_, c, err := p.load(p.options.Config)
	if err != nil {
		return nil, err
	}
	if p.Policy, err = policy.Parse(c.data); err != nil {
		return nil, fmt.Errorf("cannot read %s:%w", p.options.Config, err)
	}
	d, err := parseTOML(c.data)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s:%w", p.options.Config, err)
	}
	return d, nil
}

// settle writes our own configuration where it is missing, and the policy that a default handler needs. It is the first
// file that changes: the engine must never call a wrapper that refuses what it should report.
func (p *Plan) settle(d *tomlDocument, was present) error {
	if len(d.bytes()) == 0 {
		if err := p.newConfig(d, was); err != nil {
			return err
		}
	} else {
		p.compareRuntime(was)
	}
	if err := p.setRules(d); err != nil {
		return fmt.Errorf("cannot edit %s:%w", p.options.Config, err)
	}
	parsed, err := policy.Parse(d.bytes())
	if err != nil {
		return fmt.Errorf("internal error: cannot read what %s would hold:%w", p.options.Config, err)
	}
	p.Policy = parsed
	engineFiles := p.Changes
	p.Changes = nil
	if err := p.change(p.options.Config, d.bytes()); err != nil {
		return err
	}
	for i := range p.Changes {
		p.Changes[i].shared = true
	}
	p.Changes = append(p.Changes, engineFiles...)
	return nil
}

// newConfig is the least that a node's configuration must say.
func (p *Plan) newConfig(d *tomlDocument, was present) error {
	head := fmt.Sprintf("# gpuledger's configuration, written by `gpuledger configure %s`. Every key that is not here has its default;\n"+
		"# docs/engines.md and configs/config.toml of gpuledger tell them all.\nengine = %q\n\n[runtime]\npath = %s\n",
		engines[p.options.Engine].suffix, p.options.Engine, literal(p.realRuntimes(was)))
	parsed, err := parseTOML([]byte(head))
	if err == nil {
		*d = *parsed
	}
	return err
}

// realRuntimes is what the wrapper shall become: what the engine runs now.
func (p *Plan) realRuntimes(was present) []string {
	switch name := filepath.Base(was.binary); {
	case strings.HasPrefix(name, "runc"), strings.HasPrefix(name, "crun"):
		return []string{was.binary}
	case was.binary != "":
		p.note("the present default runtime is %s; containers that go through gpuledger run under runc or crun instead (runtime.path in %s)", was.binary, p.options.Config)
	case was.search != nil:
		return was.search
	}
	return policy.Default().Runtime.Path
}

func (p *Plan) compareRuntime(was present) {
	if was.binary != "" && !slices.Contains(p.Policy.Runtime.Path, was.binary) && !slices.Contains(p.Policy.Runtime.Path, filepath.Base(was.binary)) {
		p.note("the present default runtime is %s, but runtime.path in %s has %s", was.binary, p.options.Config, strings.Join(p.Policy.Runtime.Path, ", "))
	}
}

// setRules writes policy.mode and policy.privileged: as told, or where every container of the node comes through us and the
// administrator has not said otherwise.
func (p *Plan) setRules(d *tomlDocument) error {
	for _, rule := range []struct{ key, told, careful string }{
		{"mode", string(p.options.Mode), string(grant.Report)},
		{"privileged", string(p.options.Privileged), string(grant.Strip)},
	} {
		value := rule.told
		if _, found := d.get("policy", rule.key); value == "" && p.options.AsDefault && !found {
			value = rule.careful
		}
		if value == "" {
			continue
		}
		if err := d.set(value, "policy", rule.key); err != nil {
			return err
		}
	}
	return nil
}

// globs are the annotations of a pod that the wrapper must see. A '*' does not match '/'.
func (p *Plan) globs() []string {
	var globs []string
	for _, dialect := range p.Policy.Annotations.Dialects {
		switch dialect {
		case grant.DialectGPULedger:
			globs = append(globs, "gpuledger.dev/*")
		case grant.DialectGPUShare:
			globs = append(globs, "ALIYUN_COM_GPU_MEM_*", "scheduler.framework.gpushare.allocation")
		}
	}
	return union([]string{"gpuledger.dev/*"}, globs...) // a reference to a grant is no dialect
}
