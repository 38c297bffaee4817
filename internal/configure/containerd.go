package configure

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
)

// editContainerd puts gpuledger's handler into the file that containerd applies last. It edits what
// engines/containerd.go has found: which files there are, and what they say.
func editContainerd(c *engines.Containerd, w wanted) (fileEdits, error) {
	var e fileEdits
	if legacy := configfile.Text(w.was.Tree, "containerd", "default_runtime", "runtime_type"); legacy != "" &&
		c.LastSectionWins && w.asDefault {
		return e, fmt.Errorf("cannot configure containerd: the table default_runtime of its CRI plugin " +
			"overrides default_runtime_name; write it as runtimes.NAME and default_runtime_name = NAME")
	}
	if distribution := w.in.Distribution(); distribution != nil && c.DropIn == "" {
		if edit := templates[distribution.Name]; edit != nil {
			return edit(c, w, distribution.Name)
		}
	}
	target, err := containerdTarget(c, w)
	if err != nil {
		return e, err
	}
	if err := setContainerd(&e, c, w, target); err != nil {
		return e, fmt.Errorf("cannot edit %s:%w", target.Path, err)
	}
	if c.LastSectionWins && target.Path != c.Main {
		section := configfile.Table(target.Tree(), "plugins", c.Plugin)
		if err := writeSection(c, w, target, section); err != nil {
			return e, err
		}
	}
	if err := verifyContainerd(c, w, target); err != nil {
		return e, err
	}
	e.noteConfig(w, "the environment of containerd")
	e.files = append(e.files, editedFile{target.Path, target.Bytes(), sectionSource(c, target)})
	if target.Path != c.Main {
		e.write(c.Main, c.Files[0].Bytes()) // last, because the file that it imports must exist by then
	}
	return e, nil
}

// containerdTarget is the file to write. It is a drop-in file if a directory is imported. It is a
// file of its own if the main file imports other files; the main file then imports it too.
// Otherwise it is the main file.
func containerdTarget(c *engines.Containerd, w wanted) (engines.ContainerdFile, error) {
	main, distribution := c.Files[0], w.in.Distribution()
	imports, _ := configfile.Texts(main.Tree(), "imports")
	beside := filepath.Join(filepath.Dir(c.Main), engines.DropIn+".toml")
	switch {
	case c.DropIn != "":
		return ownContainerdFile(c, w, c.DropIn)
	case distribution != nil && distribution.DropIns != "":
		// the distribution imports this directory in a way of its own
		return ownContainerdFile(c, w, filepath.Join(distribution.DropIns, engines.DropIn+".toml"))
	case len(imports) == 0:
		return main, nil
	}
	if err := main.Set(configfile.Union(imports, beside), "imports"); err != nil {
		return main, fmt.Errorf("cannot edit %s:%w", c.Main, err)
	}
	return ownContainerdFile(c, w, beside)
}

// ownContainerdFile is gpuledger's own file. If only the last file's section counts, it also holds
// everything that the other files say.
func ownContainerdFile(c *engines.Containerd, w wanted, path string) (engines.ContainerdFile, error) {
	i := slices.IndexFunc(c.Files, func(f engines.ContainerdFile) bool { return f.Path == path })
	if i < 0 {
		d, err := engines.ReadTOML(w.in.System, path)
		if err != nil {
			return engines.ContainerdFile{}, err
		}
		c.Files, i = append(c.Files, engines.ContainerdFile{Path: path, TOML: d}), len(c.Files)
	}
	f := c.Files[i]
	switch {
	case c.LastSectionWins:
		return f, copySection(c, w, f)
	case len(f.Bytes()) > 0:
		return f, nil
	}
	return f, errors.Join(addHeader(f.TOML, w.in), f.Set(c.Version, "version"))
}

// copySection gives gpuledger's file the section as it is without gpuledger. It keeps what that
// file already says about gpuledger's handler.
func copySection(c *engines.Containerd, w wanted, f engines.ContainerdFile) error {
	section, own := w.was.Tree, configfile.Table(f.Tree(), "plugins", c.Plugin, "containerd")
	if configfile.Text(own, "default_runtime_name") == engines.Handler {
		section = configfile.Merge(section, map[string]any{
			"containerd": map[string]any{"default_runtime_name": engines.Handler}})
	}
	if ours := configfile.Table(own, "runtimes", engines.Handler); ours != nil {
		section = configfile.Merge(section, map[string]any{
			"containerd": map[string]any{"runtimes": map[string]any{engines.Handler: ours}}})
	}
	return writeSection(c, w, f, section)
}

// sectionSource is the file whose section gpuledger's file copies; "" if it copies none.
func sectionSource(c *engines.Containerd, target engines.ContainerdFile) (source string) {
	for _, f := range c.Files {
		if c.LastSectionWins && f.Path != target.Path &&
			configfile.Table(f.Tree(), "plugins", c.Plugin) != nil {
			source = f.Path
		}
	}
	return source
}

// writeSection replaces the text of gpuledger's file by one with this section.
func writeSection(c *engines.Containerd, w wanted, f engines.ContainerdFile, section map[string]any) error {
	d := &configfile.TOML{}
	if err := addHeader(d, w.in); err != nil {
		return err
	}
	fresh, err := configfile.ParseTOML(fmt.Appendf(
		nil,
		"%s# Of two files with this section containerd 1.x takes the later one's alone, so it has here "+
			"what the others say, too.\n"+
			"# After a change there run `gpuledger configure containerd` again.\nversion = %d\n%s", d.Bytes(),
		c.Version, configfile.Sections([]string{"plugins", c.Plugin}, section)))
	if err != nil {
		return fmt.Errorf("internal error: cannot write %s: line %w", f.Path, err)
	}
	*f.TOML = *fresh
	return nil
}

// setContainerd makes all edits of the target.
func setContainerd(e *fileEdits, c *engines.Containerd, w wanted, target engines.ContainerdFile) error {
	set := configfile.Setter{Document: target.TOML}
	set.Err = addHeader(target.TOML, w.in)
	if _, found := target.Get("version"); !found && c.Version > 1 {
		set.To(c.Version, "version")
	}
	base := []string{"plugins", c.Plugin}
	at := func(names ...string) []string { return slices.Concat(base, names) }
	setContainerdCDI(&set, c, base, w.was.Tree)
	if len(configfile.Table(w.was.Tree, "containerd", "runtimes")) == 0 && c.Version < 3 {
		// A list of handlers replaces the built-in one (measured with containerd 1.6). Without its
		// default handler the whole CRI plugin fails.
		set.To(engines.RuncShim, at("containerd", "runtimes", "runc", "runtime_type")...)
	}
	if w.asDefault {
		set.To(engines.Handler, at("containerd", "default_runtime_name")...)
	}
	setContainerdHandler(&set, e, w, at("containerd", "runtimes", engines.Handler),
		configfile.Table(c.Section(), "containerd", "runtimes", engines.Handler))
	return set.Err
}

// setContainerdHandler copies the present default handler to gpuledger's, except for the binary.
func setContainerdHandler(set *configfile.Setter, e *fileEdits, w wanted, path []string, has map[string]any) {
	at := func(names ...string) []string { return slices.Concat(path, names) }
	like := w.was.Settings
	set.To(engines.RuncShim, at("runtime_type")...)
	if w.was.Kind != "" {
		e.note("the present default handler is of type %s; gpuledger's is of type %s", w.was.Kind,
			engines.RuncShim)
		like = nil
	}
	for _, key := range []string{"pod_annotations", "container_annotations"} {
		list, _ := configfile.Texts(has, key)
		copied, _ := configfile.Texts(like, key)
		set.To(configfile.Union(configfile.Union(list, copied...), w.globs...), at(key)...)
	}
	setHostDevices(set, w, path, like, has)
	set.Copy(path, like, has, append([]string{"runtime_type", "pod_annotations", "container_annotations",
		"options", "runtime_path",
		"runtime_engine", "runtime_root"}, hostDevices...))
	set.To(w.link, at("options", "BinaryName")...)
	set.Copy(at("options"), configfile.Table(like, "options"), configfile.Table(has, "options"),
		[]string{"BinaryName"})
}

// setContainerdCDI switches CDI on if it is off. Before containerd 2.0 it is off by default.
func setContainerdCDI(set *configfile.Setter, c *engines.Containerd, base []string, section map[string]any) {
	on, found := configfile.Lookup(section, []string{"enable_cdi"})
	if on == false || !found && c.Version < 3 {
		set.To(true, append(slices.Clip(base), "enable_cdi")...)
	}
	setCDIDirs(set, section, "cdi_spec_dirs", append(slices.Clip(base), "cdi_spec_dirs"))
}

// verifyContainerd reads the result as containerd does. A file that containerd applies after
// gpuledger's could set something else.
func verifyContainerd(c *engines.Containerd, w wanted, target engines.ContainerdFile) error {
	section := configfile.Table(c.Section(), "containerd")
	if got := configfile.Text(section, "runtimes", engines.Handler, "options", "BinaryName"); got != w.link {
		return fmt.Errorf(
			"cannot configure containerd: a file that %s imports after %s sets the handler %s otherwise",
			c.Main, target.Path, engines.Handler)
	}
	byDefault := configfile.Text(section, "default_runtime_name")
	if w.asDefault && byDefault != engines.Handler {
		return fmt.Errorf("cannot configure containerd: a file that %s imports after %s sets "+
			"default_runtime_name = %q; take it out there", c.Main, target.Path, byDefault)
	}
	// containerd defines runc itself
	if byDefault != "" && byDefault != "runc" && configfile.Table(section, "runtimes", byDefault) == nil {
		return fmt.Errorf("cannot configure containerd: its files name the default handler %q and do not "+
			"define it, so after its next start it would not serve Kubernetes any more; take "+
			"default_runtime_name out, or use --as-default", byDefault)
	}
	return nil
}
