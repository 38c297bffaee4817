package engines

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/host"
)

// The plugins that hold the configuration of containerd's CRI runtime: in files of version 1, of
// version 2, and since version 3 (containerd 2.0).
const (
	criShortName     = "cri"
	CRIPlugin        = "io.containerd.grpc.v1.cri"
	CRIRuntimePlugin = "io.containerd.cri.v1.runtime"
)

// The shims that run OCI runtimes. containerd 2 no longer has the first version.
const (
	RuncShim   = "io.containerd.runc.v2"
	RuncShimV1 = "io.containerd.runc.v1"
)

// containerdKeys are the places where a file of any version names handlers.
var containerdKeys = []HandlerKeys{containerdSection(CRIRuntimePlugin), containerdSection(CRIPlugin),
	containerdSection(criShortName)}

func containerdSection(plugin string) HandlerKeys {
	return HandlerKeys{Handlers: []string{"plugins", plugin, "containerd", "runtimes"},
		Default: []string{"plugins", plugin, "containerd", "default_runtime_name"}}
}

// DropIn is the name of gpuledger's file among an engine's drop-in files. Of two files the one with
// the later name wins, and NVIDIA's toolkit calls its own 99-nvidia.
const DropIn = "zz-gpuledger"

// Containerd is containerd's configuration as it is read, from one or more files.
// configure/containerd.go edits them.
type Containerd struct {
	in      Installation
	Main    string
	Version int64
	Plugin  string
	// of two files with this plugin's section, the later one alone counts (containerd 1.x)
	LastSectionWins bool
	// the main file first, then its imports in the order that containerd applies
	Files  []ContainerdFile
	DropIn string // a name that an import's pattern matches; "" if there is none
}

type ContainerdFile struct {
	Path string
	*configfile.TOML
}

// readContainerd reads the main file and the files that it imports.
func readContainerd(in Installation) (Configuration, error) {
	c := &Containerd{in: in, Main: in.MainFile()}
	seen := map[string]bool{}
	for pending := []string{c.Main}; len(pending) > 0; pending = pending[1:] {
		path := pending[0]
		if seen[path] {
			continue
		}
		seen[path] = true
		d, err := ReadTOML(in.System, path)
		if err != nil {
			return c, err
		}
		c.Files = append(c.Files, ContainerdFile{path, d})
		pending = append(pending, c.imports(in, path, d)...)
	}
	if err := c.check(); err != nil {
		return c, err
	}
	c.LastSectionWins = c.Version < 3 && !c.mergesByKey(in)
	return c, nil
}

// imports are the files that one file imports. gpuledger's file is among them if a pattern matches
// it.
func (c *Containerd) imports(in Installation, path string, d *configfile.TOML) (names []string) {
	patterns, _ := configfile.Texts(d.Tree(), "imports")
	for _, pattern := range patterns {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(path), pattern)
		}
		if !strings.Contains(pattern, "*") {
			names = append(names, pattern)
			continue
		}
		found := in.System.Glob(pattern)
		if ours := filepath.Join(filepath.Dir(pattern), DropIn+".toml"); matchesPattern(pattern, ours) {
			found = configfile.Union(found, ours) // this file may not exist yet
			slices.Sort(found)
			c.DropIn = ours
		}
		names = append(names, found...)
	}
	return names
}

func matchesPattern(pattern, name string) bool {
	match, err := filepath.Match(pattern, name)
	return match && err == nil
}

// check finds the version and the plugin. It refuses a configuration that cannot be edited here.
func (c *Containerd) check() error {
	main := c.Files[0]
	version, found := main.Get("version")
	switch {
	case !found && len(main.Tree()) == 0:
		c.Version = 2 // what every containerd since 1.3 reads
	case !found:
		c.Version = 1
	default:
		c.Version, _ = version.(int64)
	}
	switch c.Version {
	case 1:
		c.Plugin = criShortName
	case 2:
		c.Plugin = CRIPlugin
	case 3, 4:
		c.Plugin = CRIRuntimePlugin
	default:
		return fmt.Errorf("cannot edit %s: it has version %v, and versions 1 to 4 are known here",
			c.Main, version)
	}
	if path := c.withoutCRI(); path != "" {
		return fmt.Errorf("cannot configure containerd for Kubernetes: disabled_plugins in %s switches its "+
			"CRI plugin off (for Docker's containers use `gpuledger configure docker`)", path)
	}
	return nil
}

// withoutCRI is the file that switches the CRI plugin off; "" if none does.
func (c *Containerd) withoutCRI() string {
	for _, f := range c.Files {
		disabled, _ := configfile.Texts(f.Tree(), "disabled_plugins")
		for _, plugin := range []string{criShortName, CRIPlugin, CRIRuntimePlugin} {
			if slices.Contains(disabled, plugin) {
				return f.Path
			}
		}
	}
	return ""
}

// mergesByKey reports whether this containerd merges the sections of several files key by key, with
// a main file of version 1 or 2. containerd 2 does so with every version. A file of version 3 or 4
// beside the main file proves it; otherwise the version of the program decides that reads the main
// file. Where it is not known, gpuledger's file has the whole section, as for containerd 1.x.
func (c *Containerd) mergesByKey(in Installation) bool {
	for _, f := range c.Files {
		if version, _ := f.Get("version"); version == int64(3) || version == int64(4) {
			return true
		}
	}
	return len(c.Files) > 1 && containerdRelease(in)[0] >= 2
}

// Section is the CRI runtime's section as containerd sees it. Each file is migrated to the newest
// version before it is merged. Source: cmd/containerd/server/config of 2.x, services/server/config
// of 1.x; tests ask both programs.
func (c *Containerd) Section() map[string]any {
	section := map[string]any{}
	for _, f := range c.Files {
		if c.LastSectionWins {
			if over := configfile.Table(f.Tree(), "plugins", c.Plugin); over != nil {
				section = over
			}
			continue
		}
		migrated := map[string]any{}
		for _, plugin := range []string{criShortName, CRIPlugin, CRIRuntimePlugin} {
			migrated = configfile.Merge(migrated, configfile.Table(f.Tree(), "plugins", plugin))
		}
		section = configfile.Merge(section, migrated)
	}
	return section
}

// Paths are the files that the engine reads.
func (c *Containerd) Paths() []string {
	names := []string{c.Main}
	for _, f := range c.Files {
		names = configfile.Union(names, f.Path)
	}
	return names
}

// InForce is what the files say.
func (c *Containerd) InForce() Settings {
	if len(c.Files) == 0 || c.withoutCRI() != "" {
		return Settings{Absent: len(c.Files) > 0}
	}
	section := c.Section()
	says := Settings{Default: configfile.Text(section, "containerd", "default_runtime_name")}
	says.Handlers = handlers(configfile.Table(section, "containerd", "runtimes"),
		func(h map[string]any) string { return configfile.Text(h, "options", "BinaryName") })
	says.CDIDirs, _ = configfile.Texts(section, "cdi_spec_dirs")
	says.PassesUID = c.passesUID(section)
	return says
}

// The annotation with a pod's UID, and the first containerd that writes it.
const podUIDKey = "io.kubernetes.cri.sandbox-uid"

var firstWithUID = release{1, 6, 11}

// passesUID returns the pattern by which gpuledger's handler passes on the UID that a pod claims to
// have; "" if there is none, or if containerd writes the UID itself, over that one.
func (c *Containerd) passesUID(section map[string]any) string {
	handler := configfile.Table(section, "containerd", "runtimes", Handler)
	patterns, _ := configfile.Texts(handler, "pod_annotations")
	i := slices.IndexFunc(patterns, func(p string) bool { return matchesPattern(p, podUIDKey) })
	if i < 0 || c.Version >= 3 { // only containerd 2 reads version 3
		return ""
	}
	if r := containerdRelease(c.in); slices.Compare(r[:], firstWithUID[:]) >= 0 {
		return ""
	}
	return patterns[i]
}

func (c *Containerd) DefaultHandler() DefaultHandler {
	was := DefaultHandler{Name: "runc", Tree: c.Section()}
	name := configfile.Text(was.Tree, "containerd", "default_runtime_name")
	if name != "" && name != Handler {
		was.Name = name
	}
	was.Settings = configfile.Table(was.Tree, "containerd", "runtimes", was.Name)
	was.Kind = configfile.Text(was.Settings, "runtime_type")
	if was.Kind == RuncShim || was.Kind == RuncShimV1 {
		was.Kind = ""
	}
	was.Binary = configfile.Text(was.Settings, "options", "BinaryName")
	if distribution := c.in.Distribution(); distribution != nil && c.in.System.Exists(distribution.Runc) {
		was.Search = []string{distribution.Runc}
	}
	root := configfile.Text(was.Settings, "options", "Root")
	if root == "" {
		root = "/run/containerd/runc"
	}
	was.Roots = []string{root + "/k8s.io"}
	return was
}

var containerdVersion = regexp.MustCompile(` v?([0-9]+)\.([0-9]+)(?:\.([0-9]+))?`)

// release is a version of containerd, 0.0.0 if it is not known.
type release [3]int

// containerdRelease is the version of the containerd that reads the main file, the smallest one
// of several. An installed program counts only for the usual main file, and
// only if none runs: other containerds, such as a distribution's, lie elsewhere.
func containerdRelease(in Installation) release {
	if in.System.Root != "/" {
		return release{}
	}
	var programs []string
	for _, p := range in.Daemons() {
		if hasItsName(p.PID) {
			programs = append(programs, processDir(p.PID)+"/exe")
		}
	}
	if len(programs) == 0 && in.MainFile() == in.Of().File {
		programs = in.System.Programs(in.Of().Program)
	}
	return smallestRelease(programs)
}

// smallestRelease is the smallest version of several programs; 0.0.0 if one does not report it.
func smallestRelease(programs []string) (smallest release) {
	for i, program := range programs {
		said, err := host.VersionOf(program, 10*time.Second)
		found := containerdVersion.FindStringSubmatch(said)
		if err != nil || found == nil {
			return release{}
		}
		var r release
		for k := range r {
			r[k], _ = strconv.Atoi(found[k+1])
		}
		if i == 0 || slices.Compare(r[:], smallest[:]) < 0 {
			smallest = r
		}
	}
	return smallest
}
