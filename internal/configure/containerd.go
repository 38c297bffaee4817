package configure

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
)

// The plugins that hold the configuration of containerd's CRI runtime: in files of version 1, of
// version 2, and since version 3 (containerd 2.0).
const (
	criShortName     = "cri"
	criPlugin        = "io.containerd.grpc.v1.cri"
	criRuntimePlugin = "io.containerd.cri.v1.runtime"
)

// containerdKeys are the places where a file of any version names handlers.
var containerdKeys = []keys{containerdSection(criRuntimePlugin), containerdSection(criPlugin),
	containerdSection(criShortName)}

func containerdSection(plugin string) keys {
	return keys{handlers: []string{"plugins", plugin, "containerd", "runtimes"},
		byDefault: []string{"plugins", plugin, "containerd", "default_runtime_name"}}
}

// dropIn is the name of gpuledger's file among an engine's drop-in files. Of two files the one with
// the later name wins, and NVIDIA's toolkit calls its own 99-nvidia.
const dropIn = "zz-gpuledger"

// containerdConfig is containerd's configuration, from one or more files.
type containerdConfig struct {
	main    string
	version int64
	plugin  string
	// of two files with this plugin's section, the later one alone counts (containerd 1.x)
	lastSectionWins bool
	// the main file first, then its imports in the order that containerd applies
	files  []containerdFile
	dropIn string // a name that an import's pattern matches; "" if there is none
}

type containerdFile struct {
	path string
	*configfile.TOML
}

// readContainerd reads the main file and the files that it imports.
func readContainerd(p *Plan) (configuration, error) {
	c := &containerdConfig{main: p.mainFile()}
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
		pending = append(pending, c.imports(p, path, d)...)
	}
	if err := c.check(); err != nil {
		return c, err
	}
	c.lastSectionWins = c.version < 3 && !c.mergesByKey(p)
	return c, nil
}

// imports are the files that one file imports. gpuledger's file is among them if a pattern matches
// it.
func (c *containerdConfig) imports(p *Plan, path string, d *configfile.TOML) (names []string) {
	patterns, _ := configfile.Texts(d.Tree(), "imports")
	for _, pattern := range patterns {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(path), pattern)
		}
		if !strings.Contains(pattern, "*") {
			names = append(names, pattern)
			continue
		}
		found := p.system.Glob(pattern)
		if ours := filepath.Join(filepath.Dir(pattern), dropIn+".toml"); matches(pattern, ours) {
			found = configfile.Union(found, ours) // this file may not exist yet
			slices.Sort(found)
			c.dropIn = ours
		}
		names = append(names, found...)
	}
	return names
}

func matches(pattern, name string) bool {
	match, err := filepath.Match(pattern, name)
	return match && err == nil
}

// check finds the version and the plugin. It refuses a configuration that cannot be edited here.
func (c *containerdConfig) check() error {
	main := c.files[0]
	version, found := main.Get("version")
	switch {
	case !found && len(main.Tree()) == 0:
		c.version = 2 // what every containerd since 1.3 reads
	case !found:
		c.version = 1
	default:
		c.version, _ = version.(int64)
	}
	switch c.version {
	case 1:
		c.plugin = criShortName
	case 2:
		c.plugin = criPlugin
	case 3, 4:
		c.plugin = criRuntimePlugin
	default:
		return fmt.Errorf("cannot edit %s: it has version %v, and versions 1 to 4 are known here",
			c.main, version)
	}
	if path := c.withoutCRI(); path != "" {
		return fmt.Errorf("cannot configure containerd for Kubernetes: disabled_plugins in %s switches its "+
			"CRI plugin off (for Docker's containers use `gpuledger configure docker`)", path)
	}
	return nil
}

// withoutCRI is the file that switches the CRI plugin off; "" if none does.
func (c *containerdConfig) withoutCRI() string {
	for _, f := range c.files {
		disabled, _ := configfile.Texts(f.Tree(), "disabled_plugins")
		for _, plugin := range []string{criShortName, criPlugin, criRuntimePlugin} {
			if slices.Contains(disabled, plugin) {
				return f.path
			}
		}
	}
	return ""
}

// mergesByKey reports whether this containerd merges the sections of several files key by key, with
// a main file of version 1 or 2. containerd 2 does so with every version. A file of version 3 or 4
// beside the main file proves it; otherwise the program's version decides.
func (c *containerdConfig) mergesByKey(p *Plan) bool {
	for _, f := range c.files {
		if version, _ := f.Get("version"); version == int64(3) || version == int64(4) {
			return true
		}
	}
	return len(c.files) > 1 && p.containerdMajor() >= 2
}

// section is the CRI runtime's section as containerd sees it. Each file is migrated to the newest
// version before it is merged. Source: cmd/containerd/server/config of 2.x, services/server/config
// of 1.x; tests ask both programs.
func (c *containerdConfig) section() map[string]any {
	section := map[string]any{}
	for _, f := range c.files {
		if c.lastSectionWins {
			if over := configfile.Table(f.Tree(), "plugins", c.plugin); over != nil {
				section = over
			}
			continue
		}
		migrated := map[string]any{}
		for _, plugin := range []string{criShortName, criPlugin, criRuntimePlugin} {
			migrated = configfile.Merge(migrated, configfile.Table(f.Tree(), "plugins", plugin))
		}
		section = configfile.Merge(section, migrated)
	}
	return section
}

func (c *containerdConfig) paths() []string {
	names := []string{c.main}
	for _, f := range c.files {
		names = configfile.Union(names, f.path)
	}
	return names
}

func (c *containerdConfig) inForce() engineFacts {
	if len(c.files) == 0 || c.withoutCRI() != "" {
		return engineFacts{absent: len(c.files) > 0}
	}
	section := c.section()
	facts := engineFacts{byDefault: configfile.Text(section, "containerd", "default_runtime_name")}
	facts.handlers = handlers(configfile.Table(section, "containerd", "runtimes"),
		func(h map[string]any) string { return configfile.Text(h, "options", "BinaryName") })
	facts.cdiDirs, _ = configfile.Texts(section, "cdi_spec_dirs")
	return facts
}

func (c *containerdConfig) defaultHandler(p *Plan) defaultHandler {
	was := defaultHandler{name: "runc", tree: c.section()}
	if name := configfile.Text(was.tree, "containerd", "default_runtime_name"); name != "" && name != Handler {
		was.name = name
	}
	was.handler = configfile.Table(was.tree, "containerd", "runtimes", was.name)
	was.kind = configfile.Text(was.handler, "runtime_type")
	if was.kind == runcShim || was.kind == runcShimV1 {
		was.kind = ""
	}
	was.binary = configfile.Text(was.handler, "options", "BinaryName")
	if distribution := p.distribution(); distribution != nil && p.system.Exists(distribution.runc) {
		was.search = []string{distribution.runc}
	}
	root := configfile.Text(was.handler, "options", "Root")
	if root == "" {
		root = "/run/containerd/runc"
	}
	was.roots = []string{root + "/k8s.io"}
	return was
}

// The shims that run OCI runtimes. containerd 2 no longer has the first version.
const (
	runcShim   = "io.containerd.runc.v2"
	runcShimV1 = "io.containerd.runc.v1"
)
