package configure

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/gpuledger/gpuledger/internal/configfile"
)

// edit puts gpuledger's handler into the file that containerd applies last.
func (c *containerdConfig) edit(p *Plan, was defaultHandler) error {
	if legacy := configfile.Text(was.tree, "containerd", "default_runtime", "runtime_type"); legacy != "" &&
		c.lastSectionWins && p.options.AsDefault {
		return fmt.Errorf("cannot configure containerd: the table default_runtime of its CRI plugin " +
			"overrides default_runtime_name; write it as runtimes.NAME and default_runtime_name = NAME")
	}
	distribution := p.distribution()
	if distribution != nil && distribution.template != nil && c.dropIn == "" {
		return distribution.template(p, c, was)
	}
	target, err := c.target(p, distribution, was)
	if err != nil {
		return err
	}
	if err := p.setContainerd(c, target, was); err != nil {
		return fmt.Errorf("cannot edit %s:%w", target.path, err)
	}
	if c.lastSectionWins && target.path != c.main {
		if err := c.write(p, target, configfile.Table(target.Tree(), "plugins", c.plugin)); err != nil {
			return err
		}
	}
	if err := c.verify(p, target); err != nil {
		return err
	}
	p.noteConfig("containerd")
	if err := p.change(target.path, target.Bytes()); err != nil || target.path == c.main {
		return err
	}
	return p.change(c.main, c.files[0].Bytes()) // last, because the file that it imports must exist by then
}

// target is the file to write. It is a drop-in file if a directory is imported. It is a file of its
// own if the main file imports other files; the main file then imports it too. Otherwise it is the
// main file.
func (c *containerdConfig) target(p *Plan, distribution *distribution,
	was defaultHandler) (containerdFile, error) {
	main := c.files[0]
	imports, _ := configfile.Texts(main.Tree(), "imports")
	beside := filepath.Join(filepath.Dir(c.main), dropIn+".toml")
	switch {
	case c.dropIn != "":
		return c.ownFile(p, c.dropIn, was)
	case distribution != nil && distribution.dropIns != "":
		// the distribution imports this directory in a way of its own
		return c.ownFile(p, filepath.Join(distribution.dropIns, dropIn+".toml"), was)
	case len(imports) == 0:
		return main, nil
	}
	if err := main.Set(configfile.Union(imports, beside), "imports"); err != nil {
		return main, fmt.Errorf("cannot edit %s:%w", c.main, err)
	}
	return c.ownFile(p, beside, was)
}

// ownFile is gpuledger's own file. If only the last file's section counts, it also holds everything
// that the other files say.
func (c *containerdConfig) ownFile(p *Plan, path string, was defaultHandler) (containerdFile, error) {
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
	case c.lastSectionWins:
		return f, c.copySection(p, f, was)
	case len(f.Bytes()) > 0:
		return f, nil
	}
	return f, errors.Join(p.addHeader(f.TOML), f.Set(c.version, "version"))
}

// copySection gives gpuledger's file the section as it is without gpuledger. It keeps what that
// file already says about gpuledger's handler.
func (c *containerdConfig) copySection(p *Plan, f containerdFile, was defaultHandler) error {
	section := was.tree
	if configfile.Text(f.Tree(), "plugins", c.plugin, "containerd", "default_runtime_name") == Handler {
		section = configfile.Merge(section, map[string]any{
			"containerd": map[string]any{"default_runtime_name": Handler}})
	}
	if ours := configfile.Table(f.Tree(), "plugins", c.plugin, "containerd", "runtimes", Handler); ours != nil {
		section = configfile.Merge(section, map[string]any{
			"containerd": map[string]any{"runtimes": map[string]any{Handler: ours}}})
	}
	return c.write(p, f, section)
}

// write replaces the text of gpuledger's file by one with this section.
func (c *containerdConfig) write(p *Plan, f containerdFile, section map[string]any) error {
	d := &configfile.TOML{}
	if err := p.addHeader(d); err != nil {
		return err
	}
	fresh, err := configfile.ParseTOML(fmt.Appendf(
		nil,
		"%s# Of two files with this section containerd 1.x takes the later one's alone, so it has here "+
			"what the others say, too.\n"+
			"# After a change there run `gpuledger configure containerd` again.\nversion = %d\n%s", d.Bytes(),
		c.version, configfile.Sections([]string{"plugins", c.plugin}, section)))
	if err != nil {
		return fmt.Errorf("internal error: cannot write %s: line %w", f.path, err)
	}
	*f.TOML = *fresh
	return nil
}

// setContainerd makes all edits of the target.
func (p *Plan) setContainerd(c *containerdConfig, target containerdFile, was defaultHandler) error {
	set := configfile.Setter{Document: target.TOML}
	set.Err = p.addHeader(target.TOML)
	if _, found := target.Get("version"); !found && c.version > 1 {
		set.To(c.version, "version")
	}
	base := []string{"plugins", c.plugin}
	at := func(names ...string) []string { return slices.Concat(base, names) }
	p.containerdCDI(&set, c, base, was.tree)
	if len(configfile.Table(was.tree, "containerd", "runtimes")) == 0 && c.version < 3 {
		// A list of handlers replaces the built-in one (measured with containerd 1.6). Without its
		// default handler the whole CRI plugin fails.
		set.To(runcShim, at("containerd", "runtimes", "runc", "runtime_type")...)
	}
	if p.options.AsDefault {
		set.To(Handler, at("containerd", "default_runtime_name")...)
	}
	p.setContainerdHandler(&set, at("containerd", "runtimes", Handler), was,
		configfile.Table(c.section(), "containerd", "runtimes", Handler))
	return set.Err
}

// setContainerdHandler copies the present default handler to gpuledger's, except for the binary.
func (p *Plan) setContainerdHandler(set *configfile.Setter, path []string, was defaultHandler, has map[string]any) {
	at := func(names ...string) []string { return slices.Concat(path, names) }
	like := was.handler
	set.To(runcShim, at("runtime_type")...)
	if was.kind != "" {
		p.note("the present default handler is of type %s; gpuledger's is of type %s", was.kind, runcShim)
		like = nil
	}
	for _, key := range []string{"pod_annotations", "container_annotations"} {
		list, _ := configfile.Texts(has, key)
		copied, _ := configfile.Texts(like, key)
		set.To(configfile.Union(configfile.Union(list, copied...), p.globs()...), at(key)...)
	}
	p.setHostDevices(set, path, like, has)
	set.Copy(path, like, has, append([]string{"runtime_type", "pod_annotations", "container_annotations",
		"options", "runtime_path",
		"runtime_engine", "runtime_root"}, hostDevices...))
	set.To(p.link(), at("options", "BinaryName")...)
	set.Copy(at("options"), configfile.Table(like, "options"), configfile.Table(has, "options"), []string{"BinaryName"})
}

// hostDevices are the settings that keep the host's devices from privileged containers.
var hostDevices = []string{"privileged_without_host_devices",
	"privileged_without_host_devices_all_devices_allowed"}

// setHostDevices copies hostDevices from the present default handler, if gpuledger's becomes the
// default. A privileged pod then finds the same devices as before. A handler that pods choose keeps
// the engine's default.
func (p *Plan) setHostDevices(set *configfile.Setter, path []string, like, has map[string]any) {
	if !p.options.AsDefault {
		return
	}
	for _, key := range hostDevices {
		if before := like[key] == true; before != (has[key] == true) {
			set.To(before, slices.Concat(path, []string{key})...)
		}
	}
}

// containerdCDI switches CDI on if it is off. Before containerd 2.0 it is off by default.
func (p *Plan) containerdCDI(set *configfile.Setter, c *containerdConfig, base []string, section map[string]any) {
	on, found := configfile.Lookup(section, []string{"enable_cdi"})
	if on == false || !found && c.version < 3 {
		set.To(true, append(slices.Clip(base), "enable_cdi")...)
	}
	setCDIDirs(set, section, "cdi_spec_dirs", append(slices.Clip(base), "cdi_spec_dirs"))
}

// verify reads the result as containerd does. A file that containerd applies after gpuledger's
// could set something else.
func (c *containerdConfig) verify(p *Plan, target containerdFile) error {
	section := c.section()
	if got := configfile.Text(section, "containerd", "runtimes", Handler, "options", "BinaryName"); got != p.link() {
		return fmt.Errorf(
			"cannot configure containerd: a file that %s imports after %s sets the handler %s otherwise",
			c.main, target.path, Handler)
	}
	if got := configfile.Text(section, "containerd", "default_runtime_name"); p.options.AsDefault && got != Handler {
		return fmt.Errorf("cannot configure containerd: a file that %s imports after %s sets "+
			"default_runtime_name = %q; take it out there", c.main, target.path, got)
	}
	return nil
}

var containerdVersion = regexp.MustCompile(` v?([0-9]+)\.[0-9]+`)

// containerdMajor is the major version of the installed containerd; 0 if the program does not
// report it.
func (p *Plan) containerdMajor() int {
	program := p.system.Program("containerd")
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
