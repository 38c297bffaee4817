package configure

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// ownConfig is gpuledger's own configuration.
type ownConfig struct {
	isFile bool
	policy grant.Policy // the default if there is no file
	doc    *configfile.TOML
}

// readOwnConfig reads the file at a path.
func readOwnConfig(in filetree.System, path string) (own ownConfig, err error) {
	_, c, err := in.Load(path)
	if err != nil {
		return own, err
	}
	own.isFile = c.Kind == filetree.Regular
	if own.policy, err = policy.Parse(c.Data); err != nil {
		return own, fmt.Errorf("cannot read %s:%w", path, err)
	}
	if own.doc, err = configfile.ParseTOML(c.Data); err != nil {
		return own, fmt.Errorf("cannot read %s:%w", path, err)
	}
	return own, nil
}

// ownEdits are the changes to gpuledger's own configuration, and the policy with them.
type ownEdits struct {
	fileEdits
	policy grant.Policy
}

// editOwnConfig writes gpuledger's own configuration if it is missing, and the policy that a
// default handler needs. This file changes first. Otherwise the engine could call a wrapper that
// refuses what it should only report.
func editOwnConfig(o Options, in engines.Installation, own ownConfig, was engines.DefaultHandler,
	others []grant.Engine) (e ownEdits, err error) {
	d := own.doc
	switch {
	case len(d.Bytes()) == 0:
		if d, err = newOwnConfig(&e.fileEdits, o, in, was); err != nil {
			return e, err
		}
	case hasNoValues(d.Tree()): // as a package installs it: every key is a comment
		set := configfile.Setter{Document: d}
		set.To(string(o.Engine), "engine")
		set.To(e.realRuntimes(in.System, o.Config, was), "runtime", "path")
		if set.Err != nil {
			return e, fmt.Errorf("cannot edit %s:%w", o.Config, set.Err)
		}
	default:
		e.compareRuntime(in.System, own.policy.Runtime.Path, o.Config, was)
	}
	unjudged := e.wantedUnjudged(o, in.System, was)
	if err := errors.Join(setRules(d, o), setUnjudged(d, own.policy.Runtime, o.Engine, unjudged,
		others)); err != nil {
		return e, fmt.Errorf("cannot edit %s:%w", o.Config, err)
	}
	if e.policy, err = policy.Parse(d.Bytes()); err != nil {
		return e, fmt.Errorf("internal error: cannot read what %s would hold:%w", o.Config, err)
	}
	e.noteWeaker(own.policy.Rules, others)
	paths := e.policy.Runtime.Path
	switch found := in.System.FirstProgram(paths); {
	case found == "" && o.Root == "/" && o.AsDefault:
		return e, fmt.Errorf("cannot make gpuledger the default: none of %s is there (runtime.path in "+
			"%s), so no container could start", strings.Join(paths, ", "), o.Config)
	case found == "":
		e.note("none of %s is there (runtime.path in %s): the wrapper could start no container",
			strings.Join(paths, ", "), o.Config)
	}
	e.write(o.Config, d.Bytes())
	return e, nil
}

// changes are the edits of gpuledger's own configuration. Other engines need it, too.
func (e *ownEdits) changes(in filetree.System) ([]FileChange, error) {
	changes, err := e.fileEdits.changes(in)
	for i := range changes {
		changes[i].shared = true
	}
	return changes, err
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

// newOwnConfig is the smallest valid configuration of a node.
func newOwnConfig(e *fileEdits, o Options, in engines.Installation,
	was engines.DefaultHandler) (*configfile.TOML, error) {
	return configfile.ParseTOML(fmt.Appendf(nil, "# gpuledger's configuration, written by `gpuledger "+
		"configure %s`. Every key that is not here has its default;\n"+
		"# docs/configuration.md and configs/config.toml of gpuledger list all of them.\nengine = "+
		"%q\n\n[runtime]\n"+
		"path = %s\n",
		in.Of().Name, o.Engine, configfile.Literal(e.realRuntimes(in.System, o.Config, was))))
}

// setRules writes policy.mode and policy.privileged as the options say. If they do not, and
// gpuledger becomes the default, it writes the careful values where the file has none.
func setRules(d *configfile.TOML, o Options) error {
	for _, rule := range []struct{ key, told, careful string }{
		{"mode", string(o.Mode), string(grant.Report)},
		{"privileged", string(o.Privileged), string(grant.Strip)},
	} {
		value := rule.told
		if _, found := d.Get("policy", rule.key); value == "" && o.AsDefault && !found {
			value = rule.careful
		}
		if value == "" {
			continue
		}
		if err := d.Set(value, "policy", rule.key); err != nil {
			return err
		}
	}
	return setAsk(d, o)
}

// noteWeaker adds a note if the new policy refuses less than the one before. It is also the policy
// of the other engines that are configured.
func (e *ownEdits) noteWeaker(before grant.Rules, others []grant.Engine) {
	now := e.policy.Rules
	if len(others) == 0 || before.Mode != grant.Enforce {
		return
	}
	var less, keep, names []string
	if now.Mode != before.Mode {
		less = append(less, fmt.Sprintf("policy.mode becomes %q", now.Mode))
		keep = append(keep, "--mode "+string(before.Mode))
	}
	if before.Privileged == grant.RefusePrivileged && now.Privileged != before.Privileged {
		less = append(less, fmt.Sprintf("policy.privileged becomes %q", now.Privileged))
		keep = append(keep, "--privileged "+string(before.Privileged))
	}
	for _, engine := range others {
		names = append(names, string(engine))
	}
	if len(less) > 0 {
		e.note("from now on less is refused under %s, too, which has the same policy: %s; to keep that "+
			"policy, use %s",
			strings.Join(names, " and "), strings.Join(less, " and "), strings.Join(keep, " "))
	}
}

// setAsk adds the engine to those whose containers may ask for a share at their create.
func setAsk(d *configfile.TOML, o Options) error {
	if !o.Ask {
		return nil
	}
	var before []string
	present, _ := d.Get("ask", "engines")
	list, _ := present.([]any)
	for _, engine := range list {
		before = append(before, fmt.Sprint(engine))
	}
	return d.Set(configfile.Union(before, string(o.Engine)), "ask", "engines")
}

// globs are patterns of the pod annotations that the wrapper must see. A '*' does not match '/'.
func globs(p grant.Policy) []string {
	var globs []string
	for _, dialect := range p.Annotations.Dialects {
		switch dialect {
		case grant.DialectGPULedger:
			globs = append(globs, "gpuledger.dev/*")
		case grant.DialectGPUShare:
			globs = append(globs, "ALIYUN_COM_GPU_MEM_*", "scheduler.framework.gpushare.allocation")
		}
	}
	// a reference to a grant belongs to no dialect
	return configfile.Union([]string{"gpuledger.dev/*"}, globs...)
}
