package configure

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/policy"
)

func (p *Plan) configEnv() string { return policy.PathEnv + "=" + p.options.Config }

func isConfigEnv(entry string) bool { return strings.HasPrefix(entry, policy.PathEnv+"=") }

// What Podman believes of runtimes that nobody has told it of (containers/common, pkg/config/default.go). A list replaces
// it.
var (
	podmanJSON      = []string{"crun", "runc", "kata", "runsc", "youki", "krun", "ocijail"}
	podmanNoCgroups = []string{"crun", "krun"}
)

// podman plans our drop-in file of Podman, Buildah and their like.
func (p *Plan) podman() (present, error) {
	ours, files := p.podmanFiles()
	d, err := p.readDropIns(ours, files)
	if err != nil {
		return present{}, err
	}
	tree := d.without()
	was := podmanPresent(p, tree)
	set := setter{d.doc, p.sign(d.doc)}
	keys := [][]string{{"engine", "runtimes", Handler}, {"engine", "runtime_supports_json"}}
	engine := table(tree, "engine")
	set.cdiDirs(engine, "cdi_spec_dirs", []string{"engine", "cdi_spec_dirs"})
	if p.options.AsDefault {
		keys = append(keys, []string{"engine", "runtime"})
		set.to(Handler, "engine", "runtime")
	}
	// By its name in the list of runtimes, and by that of the file where --runtime names it.
	names := []string{Handler, filepath.Base(p.link())}
	set.to(podmanList(d.doc, engine, "runtime_supports_json", podmanJSON, names), "engine", "runtime_supports_json")
	if real := p.realRuntimesQuietly(was); strings.HasPrefix(filepath.Base(p.firstRuntime(real)), "crun") {
		set.to(podmanList(d.doc, engine, "runtime_supports_nocgroups", podmanNoCgroups, names), "engine", "runtime_supports_nocgroups")
	}
	set.to([]string{p.link()}, "engine", "runtimes", Handler)
	p.noteConfig("Podman")
	return was, p.enter(d, set.err, keys...)
}

// podmanFiles are our file and all that Podman reads, in its order.
func (p *Plan) podmanFiles() (ours string, files []string) {
	main := p.mainFile()
	dir := main + ".d"
	ours = filepath.Join(dir, dropIn+".conf")
	return ours, sortedWith(p.system.glob(dir+"/*.conf"), ours, "/usr/share/containers/containers.conf", main)
}

// podmanList is a list as it is, or as Podman has it by default, with our names.
func podmanList(ours *tomlDocument, engine map[string]any, key string, byDefault, names []string) []string {
	list, found := texts(engine, key)
	if !found {
		list = byDefault
	}
	has, _ := texts(ours.tree, "engine", key)
	return union(union(has, list...), names...)
}

func podmanPresent(p *Plan, tree map[string]any) present {
	was := present{search: []string{"crun", "runc"}, roots: []string{"/run/crun", "/run/runc"}}
	name := text(tree, "engine", "runtime")
	switch {
	case filepath.IsAbs(name):
		was.binary = name
	case name != "" && name != Handler:
		was.search = []string{name}
		paths, _ := texts(tree, "engine", "runtimes", name)
		if i := slices.IndexFunc(paths, p.system.exists); i >= 0 {
			was.binary = paths[i]
		}
	}
	return was
}

// firstRuntime is the first of runtime.path that is there, as the wrapper finds it; "" if none is.
func (p *Plan) firstRuntime(paths []string) string {
	for _, path := range paths {
		candidates := []string{path}
		if !strings.Contains(path, "/") {
			candidates = nil
			for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
				candidates = append(candidates, filepath.Join(dir, path))
			}
		}
		if i := slices.IndexFunc(candidates, p.system.exists); i >= 0 {
			return candidates[i]
		}
	}
	return ""
}

// noteConfig tells of a configuration that the wrapper will only find by its environment.
func (p *Plan) noteConfig(who string) {
	if p.options.Config != policy.DefaultPath {
		p.note("the wrapper reads %s only if %s runs with %s in its environment", p.options.Config, who, p.configEnv())
	}
}
