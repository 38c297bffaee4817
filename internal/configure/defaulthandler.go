package configure

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// defaultHandler is the handler of containers that choose none.
type defaultHandler struct {
	name   string // the handler's name
	kind   string // its type, if that is not the one that runs OCI runtimes
	binary string // its program; "" if the engine finds runc or crun by itself
	// the runtimes that the engine searches by itself, if not those of gpuledger's default
	// configuration
	search  []string
	roots   []string       // the directories with the state of the engine's containers
	handler map[string]any // the handler's settings
	tree    map[string]any // everything that the engine's files say
}

// isNVIDIA reports whether it is NVIDIA's runtime, which changes a container's spec and then
// executes runc or crun.
func (w defaultHandler) isNVIDIA() bool {
	return w.kind == "" && strings.HasPrefix(filepath.Base(w.binary), "nvidia-container-runtime")
}

// isReal reports whether it is a runtime whose state says when a container has ended.
func (w defaultHandler) isReal() bool { return w.kind == "" && (w.binary == "" || isReal(w.binary)) }

func isReal(program string) bool {
	name := filepath.Base(program)
	return strings.HasPrefix(name, "runc") || strings.HasPrefix(name, "crun")
}

// followLink replaces the handler's program by the target of its link, if only the target's name
// shows that it is runc, crun or NVIDIA's runtime.
func (p *Plan) followLink(was defaultHandler) defaultHandler {
	target, err := p.system.Resolve(was.binary)
	followed := was
	if followed.binary = target; err == nil && !was.isReal() && !was.isNVIDIA() &&
		(followed.isReal() || followed.isNVIDIA()) {
		return followed
	}
	return was
}

// mayReplace refuses to replace a default handler whose work neither gpuledger nor NVIDIA's runtime
// can do.
func (p *Plan) mayReplace(was defaultHandler) error {
	if !p.options.AsDefault || was.isReal() || was.isNVIDIA() {
		return nil
	}
	what := was.binary
	if was.kind != "" {
		what = "of type " + was.kind
	}
	return fmt.Errorf("cannot make gpuledger the default: the present default runtime of %s is %s (%s), "+
		"and only the state of runc and crun tells "+
		"when a container has gone; leave --as-default out and give GPU containers the handler %s, or make "+
		"runc the default first",
		p.options.Engine, was.name, what, Handler)
}

// realRuntimes are the programs that the wrapper may execute after it has judged a container. They
// are what the engine runs now, or what NVIDIA's runtime executes.
func (p *Plan) realRuntimes(was defaultHandler) []string {
	switch {
	case was.binary != "" && was.isReal():
		return []string{was.binary}
	case was.isNVIDIA():
		if below := p.belowNVIDIA(was.binary); len(below) > 0 {
			return below
		}
	case was.binary != "" || was.kind != "":
		p.note("the present default runtime is %s; containers that go through gpuledger run under runc or "+
			"crun instead (runtime.path in %s)",
			was.name, p.options.Config)
	}
	if was.search != nil {
		return was.search
	}
	return policy.Default().Runtime.Path
}

// belowNVIDIA are the programs named runc or crun that NVIDIA's runtime is configured to execute.
// gpuledger's own is never among them.
func (p *Plan) belowNVIDIA(program string) (names []string) {
	// If NVIDIA's GPU Operator installs the toolkit, the toolkit's programs read the file below
	// their directory.
	for _, path := range []string{filepath.Join(filepath.Dir(program), ".config", nvidiaConfig),
		filepath.Join("/etc", nvidiaConfig)} {
		if !filepath.IsAbs(path) {
			continue
		}
		d, err := p.loadTOML(path)
		if err != nil {
			p.note("cannot tell which runtime NVIDIA's becomes: %v", err)
			continue
		}
		runtimes, found := configfile.Texts(d.Tree(), "nvidia-container-runtime", "runtimes")
		for _, name := range runtimes {
			if isReal(name) {
				names = append(names, name)
			} else if strings.HasPrefix(filepath.Base(name), ourProgram) {
				p.note("%s has NVIDIA's runtime become %s: name runc or crun there, which `configure` has "+
					"now put behind both", path, name)
			}
		}
		if found {
			break
		}
	}
	return names
}

const nvidiaConfig = "nvidia-container-runtime/config.toml"

// setUnjudged keeps NVIDIA's runtime for containers that pass without being judged, if it was the
// default. An engine never gets the value of another engine.
func (p *Plan) setUnjudged(d *configfile.TOML, was defaultHandler, others []grant.Engine) error {
	wanted := ""
	if p.options.AsDefault && was.isNVIDIA() {
		if wanted = was.binary; !strings.Contains(wanted, "/") && p.system.Program(wanted) != "" {
			wanted = p.system.Program(wanted)
		}
		p.note("containers that pass without being judged run under %s, as before (runtime.unjudged in %s)",
			wanted, p.options.Config)
	}
	name, engine := []string{"runtime", "unjudged"}, string(p.options.Engine)
	forAll, _ := p.Policy.Runtime.Unjudged.(string)
	byEngine, _ := p.Policy.Runtime.Unjudged.(map[string]any)
	byEngine = maps.Clone(byEngine)
	switch {
	case forAll != "" && forAll != wanted && len(others) > 0: // the value belongs to the other engines
		byEngine = map[string]any{}
		for _, o := range others {
			byEngine[string(o)] = forAll
		}
		if wanted != "" {
			byEngine[engine] = wanted
		}
		return d.Set(byEngine, name...)
	case wanted == "" || wanted == forAll || p.Policy.Runtime.UnjudgedOf(p.options.Engine) == wanted:
		return nil
	case byEngine == nil && len(others) == 0:
		return d.Set(wanted, name...)
	case byEngine == nil:
		return d.Set(map[string]any{engine: wanted}, name...)
	}
	if err := d.Set(wanted, append(slices.Clip(name), engine)...); err == nil {
		return nil
	}
	byEngine[engine] = wanted // an inline table is written anew
	return d.Set(byEngine, name...)
}

// compareRuntime adds a note if a configuration that configure does not write names another runtime
// than the engine.
func (p *Plan) compareRuntime(was defaultHandler) {
	path := p.Policy.Runtime.Path
	if was.binary != "" && !was.isNVIDIA() && !slices.Contains(path, was.binary) &&
		!slices.Contains(path, filepath.Base(was.binary)) {
		p.note("the present default runtime is %s, but runtime.path in %s has %s", was.binary,
			p.options.Config, strings.Join(path, ", "))
	}
}

// realRuntimesQuietly is runtime.path of the configuration file, or else realRuntimes without its
// notes.
func (p *Plan) realRuntimesQuietly(was defaultHandler) []string {
	quiet := Plan{options: p.options, system: p.system}
	if _, c, err := p.system.Load(p.options.Config); err == nil && c.Kind == filetree.Regular {
		return p.Policy.Runtime.Path
	}
	return quiet.realRuntimes(was)
}
