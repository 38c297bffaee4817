package configure

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// mayReplace refuses to replace a default handler whose work neither gpuledger nor NVIDIA's runtime
// can do.
func mayReplace(o Options, was engines.DefaultHandler) error {
	if !o.AsDefault || was.IsReal() || was.IsNVIDIA() {
		return nil
	}
	what := was.Binary
	if was.Kind != "" {
		what = "of type " + was.Kind
	}
	return fmt.Errorf("cannot make gpuledger the default: the present default runtime of %s is %s (%s), "+
		"and only the state of runc and crun tells "+
		"when a container has gone; leave --as-default out and give GPU containers the handler %s, or make "+
		"runc the default first",
		o.Engine, was.Name, what, engines.Handler)
}

// realRuntimes are the programs that the wrapper may execute after it has judged a container. They
// are what the engine runs now, or what NVIDIA's runtime executes.
func (e *fileEdits) realRuntimes(in filetree.System, config string, was engines.DefaultHandler) []string {
	switch {
	case was.Binary != "" && was.IsReal():
		return withNames(was.Binary)
	case was.IsNVIDIA():
		if below := e.belowNVIDIA(in, was.Binary); len(below) > 0 {
			return withNames(below...)
		}
	case was.Binary != "" || was.Kind != "":
		e.note("the present default runtime is %s; containers that go through gpuledger run under runc or "+
			"crun instead (runtime.path in %s)",
			was.Name, config)
	}
	if was.Search != nil {
		return was.Search
	}
	return policy.Default().Runtime.Path
}

// withNames adds runc or crun by name after absolute paths. If the engine's package moves the file,
// containers still start.
func withNames(paths ...string) []string {
	names := slices.Clone(paths)
	for _, path := range paths {
		name := "runc"
		if strings.HasPrefix(filepath.Base(path), "crun") {
			name = "crun"
		}
		if filepath.IsAbs(path) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// belowNVIDIA are the programs named runc or crun that NVIDIA's runtime is configured to execute.
// gpuledger's own is never among them.
func (e *fileEdits) belowNVIDIA(in filetree.System, program string) (names []string) {
	// If NVIDIA's GPU Operator installs the toolkit, the toolkit's programs read the file below
	// their directory.
	for _, path := range []string{filepath.Join(filepath.Dir(program), ".config", nvidiaConfig),
		filepath.Join("/etc", nvidiaConfig)} {
		if !filepath.IsAbs(path) {
			continue
		}
		d, err := engines.ReadTOML(in, path)
		if err != nil {
			e.note("cannot tell which runtime NVIDIA's becomes: %v", err)
			continue
		}
		runtimes, found := configfile.Texts(d.Tree(), "nvidia-container-runtime", "runtimes")
		for _, name := range runtimes {
			if engines.IsRuntime(name) {
				names = append(names, name)
			} else if strings.HasPrefix(filepath.Base(name), ourProgram) {
				e.note("%s has NVIDIA's runtime become %s: name runc or crun there, which `configure` has "+
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

// wantedUnjudged is NVIDIA's runtime, for containers that pass without being judged, if it was the
// default; else "".
func (e *fileEdits) wantedUnjudged(o Options, in filetree.System, was engines.DefaultHandler) string {
	if !o.AsDefault || !was.IsNVIDIA() {
		return ""
	}
	wanted := was.Binary
	if found := in.Program(wanted); !strings.Contains(wanted, "/") && found != "" {
		wanted = found
	}
	e.note("containers that pass without being judged run under %s, as before (runtime.unjudged in %s)",
		wanted, o.Config)
	return wanted
}

// setUnjudged sets the wanted runtime of containers that pass without being judged. others are the
// other engines that are configured. An engine never gets the value of another engine.
func setUnjudged(d *configfile.TOML, now grant.Runtime, engine grant.Engine, wanted string,
	others []grant.Engine) error {
	name := []string{"runtime", "unjudged"}
	forAll, _ := now.Unjudged.(string)
	byEngine, _ := now.Unjudged.(map[string]any)
	byEngine = maps.Clone(byEngine)
	switch {
	case forAll != "" && forAll != wanted && len(others) > 0: // the value belongs to the other engines
		byEngine = map[string]any{}
		for _, o := range others {
			byEngine[string(o)] = forAll
		}
		if wanted != "" {
			byEngine[string(engine)] = wanted
		}
		return d.Set(byEngine, name...)
	case wanted == "" || wanted == forAll || now.UnjudgedOf(engine) == wanted:
		return nil
	case byEngine == nil && len(others) == 0:
		return d.Set(wanted, name...)
	case byEngine == nil:
		return d.Set(map[string]any{string(engine): wanted}, name...)
	}
	if err := d.Set(wanted, append(slices.Clip(name), string(engine))...); err == nil {
		return nil
	}
	byEngine[string(engine)] = wanted // an inline table is written anew
	return d.Set(byEngine, name...)
}

// compareRuntime adds a note if runtime.path of a configuration that configure does not write leads
// to another program than the one that the engine runs now. The list is one for all engines, so it
// can be that of the engine that was configured first.
func (e *fileEdits) compareRuntime(in filetree.System, path []string, config string,
	was engines.DefaultHandler) {
	program, leadsTo := was.Binary, in.FirstProgram(path)
	if was.IsReal() || was.IsNVIDIA() {
		program = in.FirstProgram(new(fileEdits).realRuntimes(in, config, was))
	}
	if program == "" || leadsTo == "" || sameProgram(in, program, leadsTo) {
		return
	}
	does := "is"
	if was.IsNVIDIA() {
		does = "executes"
	}
	e.note("the present default runtime %s %s, but runtime.path in %s has %s", does, program, config,
		strings.Join(path, ", "))
}

// sameProgram compares two paths after their links are followed.
func sameProgram(in filetree.System, a, b string) bool {
	realA, errA := in.Resolve(a)
	realB, errB := in.Resolve(b)
	return a == b || errA == nil && errB == nil && realA == realB
}

// runtimesInForce is runtime.path of the configuration file, or else what realRuntimes would write
// there.
func runtimesInForce(in filetree.System, own ownConfig, was engines.DefaultHandler) []string {
	if own.isFile {
		return own.policy.Runtime.Path
	}
	return new(fileEdits).realRuntimes(in, "", was)
}
