package configure

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
)

// dropIns is an engine's configuration in several files. Each file overrides those before it.
type dropIns struct {
	files []string // in the order in which the engine reads them
	trees map[string]map[string]any
	ours  string // gpuledger's file; doc holds it
	doc   *configfile.TOML
}

// readDropIns reads all files of an engine, with gpuledger's own.
func (p *Plan) readDropIns(ours string, files []string) (d dropIns, err error) {
	d = dropIns{files: configfile.Union(files, ours), trees: map[string]map[string]any{}, ours: ours}
	for _, path := range d.files {
		doc, err := p.loadTOML(path)
		if err != nil {
			return d, err
		}
		if path == ours {
			d.doc = doc
		}
		d.trees[path] = doc.Tree()
	}
	return d, nil
}

func (d dropIns) paths() []string { return d.files }

// tree is the merged content of all files.
func (d dropIns) tree() map[string]any {
	tree := map[string]any{}
	for _, path := range d.files {
		tree = configfile.Merge(tree, d.trees[path])
	}
	return tree
}

// overruled is a file that is read after gpuledger's and sets the same key; "" if none does.
func (d dropIns) overruled(key ...string) string {
	for _, path := range d.files[slices.Index(d.files, d.ours)+1:] {
		if _, found := configfile.Lookup(d.trees[path], key); found {
			return path
		}
	}
	return ""
}

// planDropIn adds gpuledger's file to the plan. It refuses if a file that is read later sets one of
// the keys.
func (p *Plan) planDropIn(d dropIns, err error, keys ...[]string) error {
	if err != nil {
		return fmt.Errorf("cannot edit %s:%w", d.ours, err)
	}
	for _, key := range keys {
		if other := d.overruled(key...); other != "" {
			return fmt.Errorf("cannot configure %s: %s is read after %s and sets %s; take it out there",
				p.options.Engine, other, d.ours, configfile.Dotted(key))
		}
	}
	return p.change(d.ours, d.doc.Bytes())
}

// crioConfig is CRI-O's configuration. CRI-O reads every file of the drop-in directory, sorted by
// name.
type crioConfig struct{ dropIns }

var crioKeys = []keys{{handlers: []string{"crio", "runtime", "runtimes"},
	byDefault: []string{"crio", "runtime", "default_runtime"}}}

func readCRIO(p *Plan) (configuration, error) {
	main := p.mainFile()
	dir := filepath.Join(filepath.Dir(main), "crio.conf.d")
	ours := filepath.Join(dir, dropIn+".conf")
	d, err := p.readDropIns(ours, sortedWith(p.system.Glob(dir+"/*"), ours, main))
	return crioConfig{d}, err
}

func (c crioConfig) inForce() engineFacts {
	tree := configfile.Table(c.tree(), "crio", "runtime")
	facts := engineFacts{byDefault: configfile.Text(tree, "default_runtime")}
	facts.handlers = handlers(configfile.Table(tree, "runtimes"),
		func(h map[string]any) string { return configfile.Text(h, "runtime_path") })
	facts.cdiDirs, _ = configfile.Texts(tree, "cdi_spec_dirs")
	facts.hookDirs, _ = configfile.Texts(tree, "hooks_dir")
	return facts
}

// edit plans gpuledger's drop-in file.
func (c crioConfig) edit(p *Plan, was defaultHandler) error {
	set := configfile.Setter{Document: c.doc, Err: p.addHeader(c.doc)}
	keys := [][]string{{"crio", "runtime", "runtimes", Handler}}
	setCDIDirs(&set, configfile.Table(was.tree, "crio", "runtime"), "cdi_spec_dirs",
		[]string{"crio", "runtime", "cdi_spec_dirs"})
	if p.options.AsDefault {
		keys = append(keys, []string{"crio", "runtime", "default_runtime"})
		set.To(Handler, "crio", "runtime", "default_runtime")
	}
	p.setCRIOHandler(&set, was)
	return p.planDropIn(c.dropIns, set.Err, keys...)
}

// sortedWith is the order in which an engine reads its files: the main ones, then all drop-in files
// by name.
func sortedWith(dropIns []string, ours string, main ...string) []string {
	names := configfile.Union(dropIns, ours)
	slices.Sort(names)
	return append(main, names...)
}

func (c crioConfig) defaultHandler(*Plan) defaultHandler {
	tree := c.tree()
	was := defaultHandler{tree: tree, name: configfile.Text(tree, "crio", "runtime", "default_runtime"),
		roots: []string{"/run/runc", "/run/crun"}}
	if was.name == "" || was.name == Handler {
		was.name = "crun" // the default since CRI-O 1.31; before that it was runc
		if configfile.Table(tree, "crio", "runtime", "runtimes", "crun") == nil &&
			configfile.Table(tree, "crio", "runtime", "runtimes", "runc") != nil {
			was.name = "runc"
		}
	}
	was.handler = configfile.Table(tree, "crio", "runtime", "runtimes", was.name)
	if was.kind = configfile.Text(was.handler, "runtime_type"); was.kind == "oci" {
		was.kind = ""
	}
	was.binary = configfile.Text(was.handler, "runtime_path")
	switch {
	case was.binary != "":
	case was.name == "crun", was.name == "runc":
		was.search = configfile.Union([]string{was.name}, "crun", "runc")
	default:
		was.binary = was.name // CRI-O looks for the handler's name in its PATH
	}
	for _, handler := range configfile.Table(tree, "crio", "runtime", "runtimes") {
		settings, _ := handler.(map[string]any)
		if root := configfile.Text(settings, "runtime_root"); root != "" {
			was.roots = configfile.Union(was.roots, root)
		}
	}
	slices.Sort(was.roots)
	return was
}

// defaultPath is the environment that CRI-O gives to a monitor by default. A list in a file
// replaces it.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// setCRIOHandler copies the present default handler to gpuledger's. It copies allowed_annotations
// and adds nothing to it. CRI-O passes every annotation on, and drops a handler whose list has a
// key that CRI-O does not know.
func (p *Plan) setCRIOHandler(set *configfile.Setter, was defaultHandler) {
	like := was.handler
	path := []string{"crio", "runtime", "runtimes", Handler}
	at := func(name string) []string { return slices.Concat(path, []string{name}) }
	v, _ := set.Get(path...)
	has, _ := v.(map[string]any)
	set.To(p.link(), at("runtime_path")...)
	set.To("oci", at("runtime_type")...)
	if was.kind != "" {
		p.note("the present default handler is of type %s; gpuledger's is of type oci", was.kind)
		like = nil
	}
	if _, found := like["runtime_root"]; !found && has["runtime_root"] == nil {
		root := "/run/runc"
		if runtimes := p.realRuntimesQuietly(was); strings.HasPrefix(
			filepath.Base(cmp.Or(p.system.FirstProgram(runtimes), runtimes[0])), "crun") {
			root = "/run/crun"
		}
		set.To(root, at("runtime_root")...)
	}
	p.setHostDevices(set, path, like, has)
	set.Copy(path, like, has, append([]string{"runtime_path", "runtime_type", "monitor_env",
		"runtime_config_path", "platform_runtime_paths",
		"inherit_default_runtime", "runtime_pull_image"}, hostDevices...))
	set.To(p.monitorEnv(was.tree, like, has), at("monitor_env")...)
}

// monitorEnv is the only environment that reaches the wrapper under CRI-O, so it must name
// gpuledger's configuration.
func (p *Plan) monitorEnv(tree, like, has map[string]any) []string {
	env, found := configfile.Texts(has, "monitor_env")
	if !found {
		env, found = configfile.Texts(like, "monitor_env")
	}
	if !found {
		env = []string{defaultPath}
	}
	if all, _ := configfile.Texts(tree, "crio", "runtime", "conmon_env"); len(all) > 0 &&
		!slices.Contains(all, p.configEnv()) {
		p.note("crio.runtime.conmon_env is set and replaces monitor_env of every handler: add %q to it",
			p.configEnv())
	}
	env = slices.DeleteFunc(slices.Clone(env), isConfigEnv)
	return append(env, p.configEnv())
}
