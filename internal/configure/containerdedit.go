package configure

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// edit puts our handler into the file that wins.
func (c *containerdConfig) edit(p *Plan, was present) error {
	if legacy := text(was.tree, "containerd", "default_runtime", "runtime_type"); legacy != "" && c.whole && p.options.AsDefault {
		return fmt.Errorf("cannot configure containerd: the table default_runtime of its CRI plugin overrides default_runtime_name; write it as runtimes.NAME and default_runtime_name = NAME")
	}
	place := p.place()
	if place != nil && place.template != nil && c.dropIn == "" {
		return place.template(p, c, was)
	}
	target, err := c.target(p, place, was)
	if err != nil {
		return err
	}
	if err := p.setContainerd(c, target, was); err != nil {
		return fmt.Errorf("cannot edit %s:%w", target.path, err)
	}
	if c.whole && target.path != c.main {
		if err := c.write(p, target, table(target.tree, "plugins", c.plugin)); err != nil {
			return err
		}
	}
	if err := c.verify(p, target); err != nil {
		return err
	}
	p.noteConfig("containerd")
	if err := p.change(target.path, target.bytes()); err != nil || target.path == c.main {
		return err
	}
	return p.change(c.main, c.files[0].bytes()) // last: the file that it names must be there by then
}

// target is the file to write: one of our own in a directory that is imported, else one that the main file then names beside
// its other imports, else the main file.
func (c *containerdConfig) target(p *Plan, place *place, was present) (containerdFile, error) {
	main := c.files[0]
	imports, _ := texts(main.tree, "imports")
	beside := filepath.Join(filepath.Dir(c.main), dropIn+".toml")
	switch {
	case c.dropIn != "":
		return c.ownFile(p, c.dropIn, was)
	case place != nil && place.dropIns != "": // the distribution imports it its own way
		return c.ownFile(p, filepath.Join(place.dropIns, dropIn+".toml"), was)
	case len(imports) == 0:
		return main, nil
	}
	if err := main.set(union(imports, beside), "imports"); err != nil {
		return main, fmt.Errorf("cannot edit %s:%w", c.main, err)
	}
	return c.ownFile(p, beside, was)
}

// ownFile is our own file as it is or, where the last file's section counts alone, with everything that the others say.
func (c *containerdConfig) ownFile(p *Plan, path string, was present) (containerdFile, error) {
	i := slices.IndexFunc(c.files, func(f containerdFile) bool { return f.path == path })
	if i < 0 {
		d, err := p.loadTOML(path)
		if err != nil {
			return containerdFile{}, err
		}
		c.files, i = append(c.files, containerdFile{path, d}), len(c.files)
	}
	f := c.files[i]
	switch {
	case c.whole:
		return f, c.takeOver(p, f, was)
	case len(f.text) > 0:
		return f, nil
	}
	return f, errors.Join(p.sign(f.tomlDocument), f.set(c.version, "version"))
}

// takeOver gives our file the section as it is without us, and what is ours in it already.
func (c *containerdConfig) takeOver(p *Plan, f containerdFile, was present) error {
	section := was.tree
	if text(f.tree, "plugins", c.plugin, "containerd", "default_runtime_name") == Handler {
		section = merge(section, map[string]any{"containerd": map[string]any{"default_runtime_name": Handler}})
	}
	if ours := table(f.tree, "plugins", c.plugin, "containerd", "runtimes", Handler); ours != nil {
		section = merge(section, map[string]any{"containerd": map[string]any{"runtimes": map[string]any{Handler: ours}}})
	}
	return c.write(p, f, section)
}

// write writes our file anew with a section.
func (c *containerdConfig) write(p *Plan, f containerdFile, section map[string]any) error {
	d := &tomlDocument{}
	if err := p.sign(d); err != nil {
		return err
	}
	fresh, err := parseTOML(fmt.Appendf(nil, "%s# Of two files with this section containerd 1.x takes the later one's alone, so it has here what the others say, too.\n"+
		"# Who changes it there runs `gpuledger configure containerd` again.\nversion = %d\n%s", d.text, c.version, sections([]string{"plugins", c.plugin}, section)))
	if err != nil {
		return fmt.Errorf("internal error: cannot write %s: line %w", f.path, err)
	}
	*f.tomlDocument = *fresh
	return nil
}

// sections writes a table with those below it.
func sections(path []string, tree map[string]any) string {
	var keys, tables string
	for _, name := range sortedKeys(tree) {
		if below, isTable := tree[name].(map[string]any); isTable {
			tables += sections(slices.Concat(path, []string{name}), below)
			continue
		}
		keys += quoted(name) + " = " + literal(tree[name]) + "\n"
	}
	if keys == "" && tables != "" {
		return tables
	}
	return "\n[" + dotted(path) + "]\n" + keys + tables
}

// setContainerd edits the target.
func (p *Plan) setContainerd(c *containerdConfig, target containerdFile, was present) error {
	set := setter{target.tomlDocument, nil}
	set.err = p.sign(target.tomlDocument)
	if _, found := target.get("version"); !found && c.version > 1 {
		set.to(c.version, "version")
	}
	base := []string{"plugins", c.plugin}
	at := func(names ...string) []string { return slices.Concat(base, names) }
	p.containerdCDI(&set, c, base, was.tree)
	if len(table(was.tree, "containerd", "runtimes")) == 0 && c.version < 3 {
		// A list of handlers replaces the built-in one (measured with containerd 1.6), and without its default handler the
		// whole CRI plugin fails.
		set.to(runcShim, at("containerd", "runtimes", "runc", "runtime_type")...)
	}
	if p.options.AsDefault {
		set.to(Handler, at("containerd", "default_runtime_name")...)
	}
	p.setContainerdHandler(&set, at("containerd", "runtimes", Handler), was, table(c.section(), "containerd", "runtimes", Handler))
	return set.err
}

// setContainerdHandler makes our handler like the present default one, but for the binary.
func (p *Plan) setContainerdHandler(set *setter, path []string, was present, has map[string]any) {
	at := func(names ...string) []string { return slices.Concat(path, names) }
	like := was.handler
	set.to(runcShim, at("runtime_type")...)
	if was.kind != "" {
		p.note("the present default handler is of type %s; gpuledger's is of type %s", was.kind, runcShim)
		like = nil
	}
	for _, key := range []string{"pod_annotations", "container_annotations"} {
		list, _ := texts(has, key)
		copied, _ := texts(like, key)
		set.to(union(union(list, copied...), p.globs()...), at(key)...)
	}
	p.setHostDevices(set, path, like, has)
	set.copy(path, like, has, append([]string{"runtime_type", "pod_annotations", "container_annotations", "options", "runtime_path",
		"runtime_engine", "runtime_root"}, hostDevices...))
	set.to(p.link(), at("options", "BinaryName")...)
	set.copy(at("options"), table(like, "options"), table(has, "options"), []string{"BinaryName"})
}

// hostDevices keep the host's devices from privileged containers.
var hostDevices = []string{"privileged_without_host_devices", "privileged_without_host_devices_all_devices_allowed"}

// setHostDevices gives our handler, as the default one, what the default one had before it: a privileged pod shall find the
// devices that it found. A handler that pods choose has the engine's default.
func (p *Plan) setHostDevices(set *setter, path []string, like, has map[string]any) {
	if !p.options.AsDefault {
		return
	}
	for _, key := range hostDevices {
		if before := like[key] == true; before != (has[key] == true) {
			set.to(before, slices.Concat(path, []string{key})...)
		}
	}
}

// containerdCDI switches CDI on where it is off: it is by default until containerd 2.0.
func (p *Plan) containerdCDI(set *setter, c *containerdConfig, base []string, section map[string]any) {
	on, found := lookup(section, []string{"enable_cdi"})
	if on == false || !found && c.version < 3 {
		set.to(true, append(slices.Clip(base), "enable_cdi")...)
	}
	set.cdiDirs(section, "cdi_spec_dirs", append(slices.Clip(base), "cdi_spec_dirs"))
}

// verify reads the result as containerd does: a file that counts after ours could say otherwise.
func (c *containerdConfig) verify(p *Plan, target containerdFile) error {
	section := c.section()
	if got := text(section, "containerd", "runtimes", Handler, "options", "BinaryName"); got != p.link() {
		return fmt.Errorf("cannot configure containerd: a file that %s imports after %s sets the handler %s otherwise", c.main, target.path, Handler)
	}
	if got := text(section, "containerd", "default_runtime_name"); p.options.AsDefault && got != Handler {
		return fmt.Errorf("cannot configure containerd: a file that %s imports after %s sets default_runtime_name = %q; take it out there", c.main, target.path, got)
	}
	return nil
}

var containerdVersion = regexp.MustCompile(` v?([0-9]+)\.[0-9]+`)

// containerdMajor asks the program that is installed for its version; 0 where it cannot be asked.
func (p *Plan) containerdMajor() int {
	program := p.system.program("containerd")
	if p.options.Root != "/" || program == "" {
		return 0
	}
	said, err := exec.Command(program, "--version").Output()
	if found := containerdVersion.FindSubmatch(said); err == nil && found != nil {
		major, _ := strconv.Atoi(string(found[1]))
		return major
	}
	return 0
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
