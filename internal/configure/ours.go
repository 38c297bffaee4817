package configure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// link is the name by which the engine calls the wrapper.
func (p *Plan) link() string {
	return filepath.Join(filepath.Dir(p.options.Runtime), "gpuledger-runtime."+engines[p.options.Engine].suffix)
}

// linkRuntime makes the engine's own name for the wrapper. One that leads there already, as a package brings it, is kept.
func (p *Plan) linkRuntime() error {
	runtime, err := p.system.resolve(p.options.Runtime)
	if err != nil {
		return err
	}
	info, err := os.Lstat(p.system.host(runtime))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cannot find %s: name the wrapper by --runtime", p.options.Runtime)
	case err != nil:
		return fmt.Errorf("cannot find %s: %w", p.options.Runtime, cause(err))
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("cannot use %s: it is no program", p.options.Runtime)
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
func (p *Plan) settle(d *tomlDocument, was present, others []grant.Engine) error {
	switch {
	case len(d.bytes()) == 0:
		if err := p.newConfig(d, was); err != nil {
			return err
		}
	case saysNothing(d.tree): // as a package brings it: every key stands there as a comment
		set := setter{d, nil}
		set.to(string(p.options.Engine), "engine")
		set.to(p.realRuntimes(was), "runtime", "path")
		if set.err != nil {
			return fmt.Errorf("cannot edit %s:%w", p.options.Config, set.err)
		}
	default:
		p.compareRuntime(was)
	}
	if err := errors.Join(p.setRules(d), p.setUnjudged(d, was, others)); err != nil {
		return fmt.Errorf("cannot edit %s:%w", p.options.Config, err)
	}
	parsed, err := policy.Parse(d.bytes())
	if err != nil {
		return fmt.Errorf("internal error: cannot read what %s would hold:%w", p.options.Config, err)
	}
	p.Policy = parsed
	switch found := p.system.firstProgram(parsed.Runtime.Path); {
	case found == "" && p.options.Root == "/" && p.options.AsDefault:
		return fmt.Errorf("cannot make gpuledger the default: none of %s is there (runtime.path in %s), so no container could start",
			strings.Join(parsed.Runtime.Path, ", "), p.options.Config)
	case found == "":
		p.note("none of %s is there (runtime.path in %s): the wrapper could start no container", strings.Join(parsed.Runtime.Path, ", "), p.options.Config)
	}
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

// saysNothing reports whether a tree has tables only, and no value in any.
func saysNothing(tree map[string]any) bool {
	for _, v := range tree {
		if table, isTable := v.(map[string]any); !isTable || !saysNothing(table) {
			return false
		}
	}
	return true
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
