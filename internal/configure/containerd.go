package configure

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// The plugins of containerd that hold its CRI runtime's configuration: of files of version 2, and since version 3
// (containerd 2.0).
const (
	criPlugin        = "io.containerd.grpc.v1.cri"
	criRuntimePlugin = "io.containerd.cri.v1.runtime"
)

// dropIn is the name of our file among an engine's drop-in files. Of two the later name wins, and NVIDIA's toolkit calls its
// own 99-nvidia.
const dropIn = "zz-gpuledger"

// containerdConfig is containerd's configuration as it stands in one or more files.
type containerdConfig struct {
	main    string
	version int64
	plugin  string
	files   []containerdFile // the main file first, then its imports in the order in which they count
	dropIn  string           // a name that an import takes in; "" without one
}

type containerdFile struct {
	path string
	*tomlDocument
}

// containerd plans the edit of containerd's configuration.
func (p *Plan) containerd() (present, error) {
	c, err := p.readContainerd()
	if err != nil {
		return present{}, err
	}
	target, err := c.target(p)
	if err != nil {
		return present{}, err
	}
	tree := c.effective()
	was := containerdPresent(tree)
	if err := p.setContainerd(c, target, tree); err != nil {
		return present{}, fmt.Errorf("cannot edit %s:%w", target.path, err)
	}
	if err := c.verify(p, target); err != nil {
		return present{}, err
	}
	return was, p.change(target.path, target.bytes())
}

// readContainerd reads the main file and what it imports.
func (p *Plan) readContainerd() (containerdConfig, error) {
	c := containerdConfig{main: p.mainFile()}
	seen := map[string]bool{}
	for pending := []string{c.main}; len(pending) > 0; pending = pending[1:] {
		path := pending[0]
		if seen[path] {
			continue
		}
		seen[path] = true
		d, err := p.loadTOML(path)
		if err != nil {
			return c, err
		}
		c.files = append(c.files, containerdFile{path, d})
		patterns, _ := texts(d.tree, "imports")
		for _, pattern := range patterns {
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(path), pattern)
			}
			names := p.system.glob(pattern)
			if ours := filepath.Join(filepath.Dir(pattern), dropIn+".toml"); strings.Contains(pattern, "*") && matches(pattern, ours) {
				names = union(names, ours) // where it will count; empty so far, or not
				slices.Sort(names)
				c.dropIn = ours
			}
			pending = append(pending, names...)
		}
	}
	return c, c.check()
}

// check refuses what cannot be configured.
func (c *containerdConfig) check() error {
	main := c.files[0]
	version, found := main.get("version")
	switch {
	case !found && len(main.tree) == 0:
		c.version = 2 // what every containerd since 1.3 reads
	case !found || version == int64(1):
		return fmt.Errorf("cannot edit %s: it has no version, or version 1, which containerd 2 no longer knows; write the file anew with `containerd config migrate`", c.main)
	case version != int64(2) && version != int64(3) && version != int64(4):
		return fmt.Errorf("cannot edit %s: it has version %v, and versions 2 to 4 are known here", c.main, version)
	default:
		c.version = version.(int64)
	}
	c.plugin = criPlugin
	if c.version >= 3 {
		c.plugin = criRuntimePlugin
	}
	if path := c.withoutCRI(); path != "" {
		return fmt.Errorf("cannot configure containerd for Kubernetes: disabled_plugins in %s switches its CRI plugin off (for Docker's containers use `gpuledger configure docker`)", path)
	}
	return nil
}

// withoutCRI is the file that switches the CRI plugin off; "" if none does.
func (c *containerdConfig) withoutCRI() string {
	for _, f := range c.files {
		disabled, _ := texts(f.tree, "disabled_plugins")
		if slices.Contains(disabled, criPlugin) || slices.Contains(disabled, c.plugin) || slices.Contains(disabled, "cri") {
			return f.path
		}
	}
	return ""
}

// target is the file to edit. Since version 3 imported files are merged key by key, so a file of our own in an imported
// directory is enough. Before, the last file that has a section replaces it whole (measured with containerd 1.6), so that
// one must be edited.
func (c *containerdConfig) target(p *Plan) (containerdFile, error) {
	if c.version >= 3 && c.dropIn != "" {
		f := c.files[slices.IndexFunc(c.files, func(f containerdFile) bool { return f.path == c.dropIn })]
		if len(f.text) > 0 {
			return f, nil
		}
		return f, errors.Join(p.sign(f.tomlDocument), f.set(c.version, "version"))
	}
	last := c.files[0]
	for _, f := range c.files {
		if _, found := f.get("plugins", c.plugin); found {
			last = f
		}
	}
	return last, nil
}

// effective is the CRI runtime's section as containerd will see it, with the target's part as it is now.
func (c *containerdConfig) effective() map[string]any {
	section := map[string]any{}
	for _, f := range c.files {
		over := table(f.tree, "plugins", c.plugin)
		if over != nil && c.version < 3 {
			section = map[string]any{}
		}
		section = merge(section, over)
	}
	return section
}

func matches(pattern, name string) bool {
	match, err := filepath.Match(pattern, name)
	return match && err == nil
}

// defaultHandler is the name of the default handler, or of the one before it was ours.
func defaultHandler(section map[string]any) string {
	name := text(section, "containerd", "default_runtime_name")
	if name == "" || name == Handler {
		return "runc"
	}
	return name
}

func containerdPresent(section map[string]any) present {
	options := table(section, "containerd", "runtimes", defaultHandler(section), "options")
	root := text(options, "Root")
	if root == "" {
		root = "/run/containerd/runc"
	}
	return present{binary: text(options, "BinaryName"), roots: []string{root + "/k8s.io"}}
}

// runcShim is the shim that runs OCI runtimes.
const runcShim = "io.containerd.runc.v2"

// setContainerd edits the target.
func (p *Plan) setContainerd(c containerdConfig, target containerdFile, section map[string]any) error {
	p.noteConfig("containerd")
	set := setter{target.tomlDocument, nil}
	set.err = p.sign(target.tomlDocument)
	if target.path == c.main {
		set.to(c.version, "version")
	}
	base := []string{"plugins", c.plugin}
	runtimes := append(slices.Clip(base), "containerd", "runtimes")
	name := defaultHandler(section)
	p.containerdCDI(&set, c, base, section)
	if len(table(section, "containerd", "runtimes")) == 0 && c.version == 2 {
		// A list of handlers replaces the built-in one (measured with containerd 1.6), and without its default handler the
		// whole CRI plugin fails.
		set.to(runcShim, append(slices.Clip(runtimes), "runc", "runtime_type")...)
	}
	if p.options.AsDefault {
		set.to(Handler, append(slices.Clip(base), "containerd", "default_runtime_name")...)
	}
	ours := append(slices.Clip(runtimes), Handler)
	p.setContainerdHandler(&set, ours, table(section, "containerd", "runtimes", name), table(section, "containerd", "runtimes", Handler))
	return set.err
}

// setContainerdHandler makes our handler like the present default one, but for the binary. privileged_without_host_devices
// is never copied: it would take host devices from every privileged pod.
func (p *Plan) setContainerdHandler(set *setter, path []string, like, has map[string]any) {
	at := func(names ...string) []string { return slices.Concat(path, names) }
	set.to(runcShim, at("runtime_type")...)
	if kind := text(like, "runtime_type"); kind != "" && kind != runcShim {
		p.note("the present default handler is of type %s; gpuledger's is of type %s", kind, runcShim)
		like = nil
	}
	for _, key := range []string{"pod_annotations", "container_annotations"} {
		list, _ := texts(has, key)
		copied, _ := texts(like, key)
		set.to(union(union(list, copied...), p.globs()...), at(key)...)
	}
	never := []string{"runtime_type", "pod_annotations", "container_annotations", "options", "runtime_path", "runtime_engine", "runtime_root",
		"privileged_without_host_devices", "privileged_without_host_devices_all_devices_allowed"}
	set.copy(path, like, has, never)
	if v, _ := lookup(has, never[7:8]); v == true && p.options.AsDefault {
		set.to(false, at("privileged_without_host_devices")...)
	}
	set.to(p.link(), at("options", "BinaryName")...)
	set.copy(at("options"), table(like, "options"), table(has, "options"), []string{"BinaryName"})
}

// containerdCDI switches CDI on where it is off: it is by default until containerd 2.0.
func (p *Plan) containerdCDI(set *setter, c containerdConfig, base []string, section map[string]any) {
	on, found := lookup(section, []string{"enable_cdi"})
	if on == false || !found && c.version == 2 {
		set.to(true, append(slices.Clip(base), "enable_cdi")...)
	}
	set.cdiDirs(section, "cdi_spec_dirs", append(slices.Clip(base), "cdi_spec_dirs"))
}

// verify reads the result as containerd does: a file that counts after ours could say otherwise.
func (c *containerdConfig) verify(p *Plan, target containerdFile) error {
	section := c.effective()
	if got := text(section, "containerd", "runtimes", Handler, "options", "BinaryName"); got != p.link() {
		return fmt.Errorf("cannot configure containerd: a file that %s imports after %s sets the handler %s otherwise", c.main, target.path, Handler)
	}
	if got := text(section, "containerd", "default_runtime_name"); p.options.AsDefault && got != Handler {
		return fmt.Errorf("cannot configure containerd: a file that %s imports after %s sets default_runtime_name = %q; take it out there", c.main, target.path, got)
	}
	return nil
}

// setter makes many edits of a document and keeps the first error.
type setter struct {
	document
	err error
}

func (s *setter) to(value any, path ...string) {
	if s.err == nil {
		s.err = s.set(value, path...)
	}
}

// copy gives our handler what the one like it has, except for what it has already and for what is never copied.
func (s *setter) copy(path []string, like, has map[string]any, never []string) {
	for _, key := range slices.Sorted(maps.Keys(like)) {
		if _, found := has[key]; found || slices.Contains(never, key) || isZero(like[key]) {
			continue
		}
		s.to(like[key], slices.Concat(path, []string{key})...)
	}
}

// isZero reports whether a setting says nothing: dumped configurations are full of such.
func isZero(v any) bool {
	switch v := v.(type) {
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return v == "" || v == false || v == int64(0)
}

// cdiDirs adds the standard directories of CDI to a list that somebody has written without them. An engine's own default
// has them.
func (s *setter) cdiDirs(tree map[string]any, key string, path []string) {
	dirs, found := texts(tree, key)
	if missing := missingCDI(dirs); found && len(missing) > 0 {
		s.to(union(dirs, missing...), path...)
	}
}

func missingCDI(dirs []string) []string {
	missing := []string{}
	for _, dir := range []string{"/etc/cdi", "/var/run/cdi"} {
		if !slices.Contains(dirs, dir) && !slices.Contains(dirs, strings.TrimPrefix(dir, "/var")) {
			missing = append(missing, dir)
		}
	}
	return missing
}
