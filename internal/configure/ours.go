package configure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// link is the path by which the engine calls the wrapper.
func (p *Plan) link() string {
	return filepath.Join(filepath.Dir(p.options.Runtime), "gpuledger-runtime."+
		engines[p.options.Engine].suffix)
}

// linkRuntime plans the engine's own link to the wrapper. It keeps a link that already leads there,
// such as one from a package.
func (p *Plan) linkRuntime() error {
	runtime, err := p.system.Resolve(p.options.Runtime)
	if err != nil {
		return err
	}
	info, err := os.Lstat(p.system.Host(runtime))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cannot find %s: name the wrapper by --runtime", p.options.Runtime)
	case err != nil:
		return fmt.Errorf("cannot find %s: %w", p.options.Runtime, cause(err))
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("cannot use %s: it is no program", p.options.Runtime)
	}
	path := p.link()
	if leads, err := p.system.Resolve(path); err != nil || leads == runtime {
		return err
	}
	dir, err := p.system.Resolve(filepath.Dir(path))
	if err != nil {
		return err
	}
	name := filepath.Join(dir, filepath.Base(path))
	before, err := p.system.Read(name)
	if err != nil {
		return err
	}
	if before.Kind == filetree.Regular {
		return fmt.Errorf("cannot make the link %s: a file is in its place", path)
	}
	p.Changes = append(p.Changes, Change{Path: path, Action: "link", name: name, before: before,
		after: filetree.FileContent{Kind: filetree.Link, Target: filepath.Base(p.options.Runtime)}})
	return nil
}

// ourConfig reads gpuledger's own configuration. It says which pod annotations the wrapper needs.
func (p *Plan) ourConfig() (*configfile.TOML, error) {
	_, c, err := p.system.Load(p.options.Config)
	if err != nil {
		return nil, err
	}
	if p.Policy, err = policy.Parse(c.Data); err != nil {
		return nil, fmt.Errorf("cannot read %s:%w", p.options.Config, err)
	}
	d, err := configfile.ParseTOML(c.Data)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s:%w", p.options.Config, err)
	}
	return d, nil
}

// planConfig plans gpuledger's own configuration if it is missing, and the policy that a default
// handler needs. This file changes first. Otherwise the engine could call a wrapper that refuses
// what it should only report.
func (p *Plan) planConfig(d *configfile.TOML, was defaultHandler, others []grant.Engine) error {
	switch {
	case len(d.Bytes()) == 0:
		if err := p.newConfig(d, was); err != nil {
			return err
		}
	case hasNoValues(d.Tree()): // as a package installs it: every key is a comment
		set := configfile.Setter{Document: d}
		set.To(string(p.options.Engine), "engine")
		set.To(p.realRuntimes(was), "runtime", "path")
		if set.Err != nil {
			return fmt.Errorf("cannot edit %s:%w", p.options.Config, set.Err)
		}
	default:
		p.compareRuntime(was)
	}
	if err := errors.Join(p.setRules(d), p.setUnjudged(d, was, others)); err != nil {
		return fmt.Errorf("cannot edit %s:%w", p.options.Config, err)
	}
	parsed, err := policy.Parse(d.Bytes())
	if err != nil {
		return fmt.Errorf("internal error: cannot read what %s would hold:%w", p.options.Config, err)
	}
	p.Policy = parsed
	switch found := p.system.FirstProgram(parsed.Runtime.Path); {
	case found == "" && p.options.Root == "/" && p.options.AsDefault:
		return fmt.Errorf("cannot make gpuledger the default: none of %s is there (runtime.path in %s), so "+
			"no container could start",
			strings.Join(parsed.Runtime.Path, ", "), p.options.Config)
	case found == "":
		p.note("none of %s is there (runtime.path in %s): the wrapper could start no container",
			strings.Join(parsed.Runtime.Path, ", "), p.options.Config)
	}
	engineFiles := p.Changes
	p.Changes = nil
	if err := p.change(p.options.Config, d.Bytes()); err != nil {
		return err
	}
	for i := range p.Changes {
		p.Changes[i].shared = true
	}
	p.Changes = append(p.Changes, engineFiles...)
	return nil
}

// hasNoValues reports whether a tree has only tables, without a value in any.
func hasNoValues(tree map[string]any) bool {
	for _, v := range tree {
		if table, isTable := v.(map[string]any); !isTable || !hasNoValues(table) {
			return false
		}
	}
	return true
}

// newConfig writes the smallest valid configuration of a node.
func (p *Plan) newConfig(d *configfile.TOML, was defaultHandler) error {
	head := fmt.Sprintf("# gpuledger's configuration, written by `gpuledger configure %s`. Every key that "+
		"is not here has its default;\n"+
		"# docs/engines.md and configs/config.toml of gpuledger list all of them.\nengine = "+
		"%q\n\n[runtime]\n"+
		"path = %s\n",
		engines[p.options.Engine].suffix, p.options.Engine, configfile.Literal(p.realRuntimes(was)))
	parsed, err := configfile.ParseTOML([]byte(head))
	if err == nil {
		*d = *parsed
	}
	return err
}

// setRules writes policy.mode and policy.privileged as the options say. If they do not, and
// gpuledger becomes the default, it writes the careful values where the file has none.
func (p *Plan) setRules(d *configfile.TOML) error {
	for _, rule := range []struct{ key, told, careful string }{
		{"mode", string(p.options.Mode), string(grant.Report)},
		{"privileged", string(p.options.Privileged), string(grant.Strip)},
	} {
		value := rule.told
		if _, found := d.Get("policy", rule.key); value == "" && p.options.AsDefault && !found {
			value = rule.careful
		}
		if value == "" {
			continue
		}
		if err := d.Set(value, "policy", rule.key); err != nil {
			return err
		}
	}
	return nil
}

// globs are patterns of the pod annotations that the wrapper must see. A '*' does not match '/'.
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
	return configfile.Union([]string{"gpuledger.dev/*"}, globs...) // a reference to a grant belongs to no dialect
}
