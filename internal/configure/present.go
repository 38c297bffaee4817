package configure

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// present is what an engine runs containers with that choose no handler.
type present struct {
	name    string         // of the default handler
	kind    string         // its type, where that is not the one that runs OCI runtimes
	binary  string         // its program; "" where the engine finds runc or crun by itself
	search  []string       // the runtimes that the engine would look for by itself, if not those of our defaults
	roots   []string       // where the state of the engine's containers lies
	handler map[string]any // its settings
	tree    map[string]any // all that the engine's files say
}

// isNVIDIA reports whether it is NVIDIA's runtime, which changes a container and becomes runc or crun.
func (w present) isNVIDIA() bool {
	return w.kind == "" && strings.HasPrefix(filepath.Base(w.binary), "nvidia-container-runtime")
}

// isReal reports whether it is one of the runtimes whose state says when a container has gone.
func (w present) isReal() bool { return w.kind == "" && (w.binary == "" || isReal(w.binary)) }

func isReal(program string) bool {
	name := filepath.Base(program)
	return strings.HasPrefix(name, "runc") || strings.HasPrefix(name, "crun")
}

// known is what is present with its program by the name that says what it is: a link's target, where the link has another.
func (p *Plan) known(was present) present {
	target, err := p.system.resolve(was.binary)
	followed := was
	if followed.binary = target; err == nil && !was.isReal() && !was.isNVIDIA() && (followed.isReal() || followed.isNVIDIA()) {
		return followed
	}
	return was
}

// mayReplace refuses to become the default in place of what neither we nor NVIDIA's runtime could stand in for.
func (p *Plan) mayReplace(was present) error {
	if !p.options.AsDefault || was.isReal() || was.isNVIDIA() {
		return nil
	}
	what := was.binary
	if was.kind != "" {
		what = "of type " + was.kind
	}
	return fmt.Errorf("cannot make gpuledger the default: the present default runtime of %s is %s (%s), and only the state of runc and crun tells "+
		"when a container has gone; leave --as-default out and give GPU containers the handler %s, or make runc the default first",
		p.options.Engine, was.name, what, Handler)
}

// realRuntimes is what the wrapper shall become where it has judged a container: what the engine runs now, or what NVIDIA's
// runtime becomes.
func (p *Plan) realRuntimes(was present) []string {
	switch {
	case was.binary != "" && was.isReal():
		return []string{was.binary}
	case was.isNVIDIA():
		if below := p.belowNVIDIA(was.binary); len(below) > 0 {
			return below
		}
	case was.binary != "" || was.kind != "":
		p.note("the present default runtime is %s; containers that go through gpuledger run under runc or crun instead (runtime.path in %s)",
			was.name, p.options.Config)
	}
	if was.search != nil {
		return was.search
	}
	return policy.Default().Runtime.Path
}

// belowNVIDIA are those of runc and crun that NVIDIA's runtime is told to become, never ourselves.
func (p *Plan) belowNVIDIA(program string) (names []string) {
	// Where NVIDIA's GPU Operator puts the toolkit, its programs read the file below it.
	for _, path := range []string{filepath.Join(filepath.Dir(program), ".config", nvidiaConfig), filepath.Join("/etc", nvidiaConfig)} {
		if !filepath.IsAbs(path) {
			continue
		}
		d, err := p.loadTOML(path)
		if err != nil {
			p.note("cannot tell which runtime NVIDIA's becomes: %v", err)
			continue
		}
		runtimes, found := texts(d.tree, "nvidia-container-runtime", "runtimes")
		for _, name := range runtimes {
			if isReal(name) {
				names = append(names, name)
			} else if strings.HasPrefix(filepath.Base(name), ourProgram) {
				p.note("%s has NVIDIA's runtime become %s: name runc or crun there, which `configure` has now put behind both", path, name)
			}
		}
		if found {
			break
		}
	}
	return names
}

const nvidiaConfig = "nvidia-container-runtime/config.toml"

// setUnjudged has containers that pass without being judged run as they did: under NVIDIA's runtime, where that was the
// default. No engine gets another one's.
func (p *Plan) setUnjudged(d *tomlDocument, was present, others []grant.Engine) error {
	wanted := ""
	if p.options.AsDefault && was.isNVIDIA() {
		if wanted = was.binary; !strings.Contains(wanted, "/") && p.system.program(wanted) != "" {
			wanted = p.system.program(wanted)
		}
		p.note("containers that pass without being judged run under %s, as before (runtime.unjudged in %s)", wanted, p.options.Config)
	}
	name, engine := []string{"runtime", "unjudged"}, string(p.options.Engine)
	forAll, _ := p.Policy.Runtime.Unjudged.(string)
	byEngine, _ := p.Policy.Runtime.Unjudged.(map[string]any)
	byEngine = maps.Clone(byEngine)
	switch {
	case forAll != "" && forAll != wanted && len(others) > 0: // it is theirs
		byEngine = map[string]any{}
		for _, o := range others {
			byEngine[string(o)] = forAll
		}
		if wanted != "" {
			byEngine[engine] = wanted
		}
		return d.set(byEngine, name...)
	case wanted == "" || wanted == forAll || p.Policy.Runtime.UnjudgedOf(p.options.Engine) == wanted:
		return nil
	case byEngine == nil && len(others) == 0:
		return d.set(wanted, name...)
	case byEngine == nil:
		return d.set(map[string]any{engine: wanted}, name...)
	}
	if err := d.set(wanted, append(slices.Clip(name), engine)...); err == nil {
		return nil
	}
	byEngine[engine] = wanted // an inline table is written anew
	return d.set(byEngine, name...)
}

// compareRuntime tells of a configuration that somebody has written, and that says otherwise than the engine.
func (p *Plan) compareRuntime(was present) {
	path := p.Policy.Runtime.Path
	if was.binary != "" && !was.isNVIDIA() && !slices.Contains(path, was.binary) && !slices.Contains(path, filepath.Base(was.binary)) {
		p.note("the present default runtime is %s, but runtime.path in %s has %s", was.binary, p.options.Config, strings.Join(path, ", "))
	}
}

// realRuntimesQuietly is realRuntimes of a configuration that is there, or would be made.
func (p *Plan) realRuntimesQuietly(was present) []string {
	quiet := Plan{options: p.options, system: p.system}
	if _, c, err := p.load(p.options.Config); err == nil && c.Kind == file {
		return p.Policy.Runtime.Path
	}
	return quiet.realRuntimes(was)
}
