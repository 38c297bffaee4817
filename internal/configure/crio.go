package configure

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// dropIns is an engine's configuration that is read from several files, each over those before it.
type dropIns struct {
	files []string // in the order in which they are read
	trees map[string]map[string]any
	ours  string // our file
	doc   *tomlDocument
}

// readDropIns reads all files of an engine, ours apart.
func (p *Plan) readDropIns(ours string, files []string) (d dropIns, err error) {
	d = dropIns{files: union(files, ours), trees: map[string]map[string]any{}, ours: ours}
	if !slices.Contains(files, ours) { // as the engine will find it
		d.files = append(slices.Clone(files), ours)
	}
	for _, path := range d.files {
		doc, err := p.loadTOML(path)
		if err != nil {
			return d, err
		}
		if path == ours {
			d.doc = doc
			continue
		}
		d.trees[path] = doc.tree
	}
	return d, nil
}

// without is the configuration as it is without us.
func (d dropIns) without() map[string]any {
	tree := map[string]any{}
	for _, path := range d.files {
		tree = merge(tree, d.trees[path])
	}
	return tree
}

// overruled names a file that is read after ours and sets the same key; "" if none does.
func (d dropIns) overruled(key ...string) string {
	for _, path := range d.files[slices.Index(d.files, d.ours)+1:] {
		if _, found := lookup(d.trees[path], key); found {
			return path
		}
	}
	return ""
}

// enter puts our file into the plan, after a look at what is read after it.
func (p *Plan) enter(d dropIns, err error, keys ...[]string) error {
	if err != nil {
		return fmt.Errorf("cannot edit %s:%w", d.ours, err)
	}
	for _, key := range keys {
		if other := d.overruled(key...); other != "" {
			return fmt.Errorf("cannot configure %s: %s is read after %s and sets %s; take it out there", p.options.Engine, other, d.ours, dotted(key))
		}
	}
	return p.change(d.ours, d.doc.bytes())
}

// crio plans our drop-in file of CRI-O. CRI-O reads every file of the directory, by name.
func (p *Plan) crio() (present, error) {
	main := p.mainFile()
	dir := filepath.Join(filepath.Dir(main), "crio.conf.d")
	d, err := p.readDropIns(filepath.Join(dir, dropIn+".conf"), sortedWith(p.system.glob(dir+"/*"), filepath.Join(dir, dropIn+".conf"), main))
	if err != nil {
		return present{}, err
	}
	tree := d.without()
	like, was := crioPresent(tree)
	set := setter{d.doc, p.sign(d.doc)}
	keys := [][]string{{"crio", "runtime", "runtimes", Handler}}
	set.cdiDirs(table(tree, "crio", "runtime"), "cdi_spec_dirs", []string{"crio", "runtime", "cdi_spec_dirs"})
	if p.options.AsDefault {
		keys = append(keys, []string{"crio", "runtime", "default_runtime"})
		set.to(Handler, "crio", "runtime", "default_runtime")
	}
	p.setCRIOHandler(&set, tree, like, was)
	return was, p.enter(d, set.err, keys...)
}

// sortedWith gives the order in which an engine reads its files: the main ones, then the drop-in files by name, with ours
// among them.
func sortedWith(dropIns []string, ours string, main ...string) []string {
	names := union(dropIns, ours)
	slices.Sort(names)
	return append(main, names...)
}

// crioPresent is the default handler, and what runs under it.
func crioPresent(tree map[string]any) (like map[string]any, was present) {
	name := text(tree, "crio", "runtime", "default_runtime")
	if name == "" || name == Handler {
		name = "crun" // the default since CRI-O 1.31, runc before
		if table(tree, "crio", "runtime", "runtimes", "crun") == nil && table(tree, "crio", "runtime", "runtimes", "runc") != nil {
			name = "runc"
		}
	}
	like = table(tree, "crio", "runtime", "runtimes", name)
	was = present{binary: text(like, "runtime_path"), search: union([]string{name}, "crun", "runc"), roots: []string{"/run/runc", "/run/crun"}}
	if was.binary == "" && name != "crun" && name != "runc" {
		was.search = nil
	}
	for _, handler := range table(tree, "crio", "runtime", "runtimes") {
		settings, _ := handler.(map[string]any)
		if root := text(settings, "runtime_root"); root != "" {
			was.roots = union(was.roots, root)
		}
	}
	slices.Sort(was.roots)
	return like, was
}

// defaultPath is the environment that CRI-O gives to a monitor by default. A list replaces it.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// setCRIOHandler makes our handler like the present default one. Its allowed_annotations are copied and get nothing of ours:
// CRI-O passes every annotation on, and drops a handler whose list has a key that it does not know.
func (p *Plan) setCRIOHandler(set *setter, tree, like map[string]any, was present) {
	path := []string{"crio", "runtime", "runtimes", Handler}
	at := func(name string) []string { return slices.Concat(path, []string{name}) }
	v, _ := set.get(path...)
	has, _ := v.(map[string]any)
	set.to(p.link(), at("runtime_path")...)
	set.to("oci", at("runtime_type")...)
	if kind := text(like, "runtime_type"); kind != "" && kind != "oci" {
		p.note("the present default handler is of type %s; gpuledger's is of type oci", kind)
		like = nil
	}
	if _, found := like["runtime_root"]; !found && has["runtime_root"] == nil {
		root := "/run/runc"
		if runtimes := p.realRuntimesQuietly(was); strings.HasPrefix(filepath.Base(cmp.Or(p.firstRuntime(runtimes), runtimes[0])), "crun") {
			root = "/run/crun"
		}
		set.to(root, at("runtime_root")...)
	}
	set.copy(path, like, has, []string{"runtime_path", "runtime_type", "monitor_env", "runtime_config_path", "platform_runtime_paths",
		"inherit_default_runtime", "runtime_pull_image", "privileged_without_host_devices"})
	if has["privileged_without_host_devices"] == true && p.options.AsDefault {
		set.to(false, at("privileged_without_host_devices")...)
	}
	set.to(p.monitorEnv(tree, like, has), at("monitor_env")...)
}

// realRuntimesQuietly is realRuntimes of a configuration that is there, or would be made.
func (p *Plan) realRuntimesQuietly(was present) []string {
	quiet := Plan{options: p.options, system: p.system}
	if _, c, err := p.load(p.options.Config); err == nil && c.Kind == file {
		return p.Policy.Runtime.Path
	}
	return quiet.realRuntimes(was)
}

// monitorEnv is the only environment that reaches the wrapper under CRI-O, so it must name our configuration.
func (p *Plan) monitorEnv(tree, like, has map[string]any) []string {
	env, found := texts(has, "monitor_env")
	if !found {
		env, found = texts(like, "monitor_env")
	}
	if !found {
		env = []string{defaultPath}
	}
	if all, _ := texts(tree, "crio", "runtime", "conmon_env"); len(all) > 0 && !slices.Contains(all, p.configEnv()) {
		p.note("crio.runtime.conmon_env is set and replaces monitor_env of every handler: add %q to it", p.configEnv())
	}
	env = slices.DeleteFunc(slices.Clone(env), isConfigEnv)
	return append(env, p.configEnv())
}
