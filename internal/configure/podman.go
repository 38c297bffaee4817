package configure

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/policy"
)

func (p *Plan) configEnv() string { return policy.PathEnv + "=" + p.options.Config }

func isConfigEnv(entry string) bool { return strings.HasPrefix(entry, policy.PathEnv+"=") }

// podmanJSON and podmanNoCgroups are Podman's defaults for the lists runtime_supports_json and
// runtime_supports_nocgroups (containers/common, pkg/config/default.go). A list in a file replaces
// the default.
var (
	podmanJSON      = []string{"crun", "runc", "kata", "runsc", "youki", "krun", "ocijail"}
	podmanNoCgroups = []string{"crun", "krun"}
)

// podmanConfig is the configuration of Podman, Buildah and other programs that read
// containers.conf.
type podmanConfig struct {
	dropIns
	system filetree.System
}

var podmanKeys = []keys{{handlers: []string{"engine", "runtimes"}, byDefault: []string{"engine", "runtime"}}}

func readPodman(p *Plan) (configuration, error) {
	d, err := p.readDropIns(p.podmanFiles())
	return podmanConfig{d, p.system}, err
}

func (c podmanConfig) inForce() engineFacts {
	tree := configfile.Table(c.tree(), "engine")
	facts := engineFacts{byDefault: configfile.Text(tree, "runtime"), handlers: map[string]string{}}
	for name := range configfile.Table(tree, "runtimes") {
		paths, _ := configfile.Texts(tree, "runtimes", name)
		facts.handlers[name] = c.system.FirstProgram(paths)
		if facts.handlers[name] == "" && len(paths) > 0 {
			facts.handlers[name] = paths[0]
		}
	}
	facts.cdiDirs, _ = configfile.Texts(tree, "cdi_spec_dirs")
	facts.hookDirs, _ = configfile.Texts(tree, "hooks_dir")
	return facts
}

// edit plans gpuledger's drop-in file.
func (c podmanConfig) edit(p *Plan, was defaultHandler) error {
	set := configfile.Setter{Document: c.doc, Err: p.addHeader(c.doc)}
	keys := [][]string{{"engine", "runtimes", Handler}, {"engine", "runtime_supports_json"}}
	engine := configfile.Table(was.tree, "engine")
	setCDIDirs(&set, engine, "cdi_spec_dirs", []string{"engine", "cdi_spec_dirs"})
	if p.options.AsDefault {
		keys = append(keys, []string{"engine", "runtime"})
		set.To(Handler, "engine", "runtime")
	}
	// Podman looks a runtime up by its name in the list, or by the file's name if --runtime gives a
	// path.
	names := []string{Handler, filepath.Base(p.link())}
	set.To(podmanList(c.doc, engine, "runtime_supports_json", podmanJSON, names), "engine",
		"runtime_supports_json")
	if real := p.realRuntimesQuietly(was); strings.HasPrefix(
		filepath.Base(p.system.FirstProgram(real)), "crun") {
		set.To(podmanList(c.doc, engine, "runtime_supports_nocgroups", podmanNoCgroups, names), "engine",
			"runtime_supports_nocgroups")
	}
	set.To([]string{p.link()}, "engine", "runtimes", Handler)
	p.noteConfig("Podman")
	return p.planDropIn(c.dropIns, set.Err, keys...)
}

// podmanFiles are gpuledger's file and all files that Podman reads, in Podman's order.
func (p *Plan) podmanFiles() (ours string, files []string) {
	main := p.mainFile()
	dir := main + ".d"
	ours = filepath.Join(dir, dropIn+".conf")
	return ours, sortedWith(p.system.Glob(dir+"/*.conf"), ours, "/usr/share/containers/containers.conf", main)
}

// podmanList is a list as the files set it, or else Podman's default, with gpuledger's names.
func podmanList(ours *configfile.TOML, engine map[string]any, key string, byDefault, names []string) []string {
	list, found := configfile.Texts(engine, key)
	if !found {
		list = byDefault
	}
	has, _ := configfile.Texts(ours.Tree(), "engine", key)
	return configfile.Union(configfile.Union(has, list...), names...)
}

func (c podmanConfig) defaultHandler(*Plan) defaultHandler {
	tree := c.tree()
	was := defaultHandler{tree: tree, name: configfile.Text(tree, "engine", "runtime"),
		roots: []string{"/run/crun", "/run/runc"}}
	paths, _ := configfile.Texts(tree, "engine", "runtimes", was.name)
	switch i := slices.IndexFunc(paths, c.system.Exists); {
	case was.name == "" || was.name == Handler:
		was.search = []string{"crun", "runc"}
	case filepath.IsAbs(was.name):
		was.binary = was.name
	case i >= 0:
		was.binary = paths[i]
	case was.name == "crun", was.name == "runc":
		was.search = []string{was.name}
	default:
		was.binary = was.name
	}
	return was
}

// noteConfig adds a note if the wrapper finds its configuration only by its environment.
func (p *Plan) noteConfig(program string) {
	if p.options.Config != policy.DefaultPath {
		p.note("the wrapper reads %s only if %s runs with %s in its environment", p.options.Config, program,
			p.configEnv())
	}
}
