package engines

import (
	"maps"
	"path/filepath"
	"slices"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/filetree"
)

// CRIO is CRI-O's configuration. CRI-O reads every file of the drop-in directory, also those of
// directories in it, sorted by name (filepath.Walk in cri-o, pkg/config).
type CRIO struct{ DropIns }

// CRIODropIns is the directory of the drop-in files, unless --config-dir names another one (cri-o,
// internal/criocli). It does not depend on the main file.
const CRIODropIns = "/etc/crio/crio.conf.d"

var crioKeys = []HandlerKeys{{Handlers: []string{"crio", "runtime", "runtimes"},
	Default: []string{"crio", "runtime", "default_runtime"}}}

func readCRIO(in Installation) (Configuration, error) {
	main := in.MainFile()
	// If a main file at another place has such a directory beside it, --config-dir names that. One
	// with gpuledger's file alone was made by an older gpuledger, and CRI-O does not read it. The
	// process's arguments do not decide: gpuledgerd, which has a mount namespace of its own, does
	// not see them, nor does an undo while CRI-O does not run.
	dir := filepath.Join(filepath.Dir(main), filepath.Base(CRIODropIns))
	others := slices.DeleteFunc(filesBelow(in.System, dir),
		func(path string) bool { return filepath.Base(path) == DropIn+".conf" })
	if len(others) == 0 {
		dir = CRIODropIns
	}
	ours := filepath.Join(dir, DropIn+".conf")
	d, err := readDropIns(in.System, ours, sortedWith(filesBelow(in.System, dir), ours, main))
	return CRIO{d}, err
}

// filesBelow are the files of a directory and of those in it.
func filesBelow(in filetree.System, dir string) []string {
	files := in.Glob(dir + "/*")
	for _, name := range subdirectories(in, dir, "*") {
		files = append(files, filesBelow(in, filepath.Join(dir, name))...)
	}
	return files
}

// Tree is the merged content of all files. A handler's table replaces that of an earlier file, with
// all its keys: CRI-O decodes each table into a new value (unifyMap in BurntSushi's toml).
func (c CRIO) Tree() map[string]any {
	tree, handlers := map[string]any{}, crioKeys[0].Handlers
	for _, path := range c.Files {
		tree = configfile.Merge(tree, c.trees[path])
		maps.Copy(configfile.Table(tree, handlers...), configfile.Table(c.trees[path], handlers...))
	}
	return tree
}

// InForce is what the files say.
func (c CRIO) InForce() Settings {
	tree := configfile.Table(c.Tree(), "crio", "runtime")
	says := Settings{Default: configfile.Text(tree, "default_runtime")}
	says.Handlers = handlers(configfile.Table(tree, "runtimes"),
		func(h map[string]any) string { return configfile.Text(h, "runtime_path") })
	says.CDIDirs, _ = configfile.Texts(tree, "cdi_spec_dirs")
	says.HookDirs, _ = configfile.Texts(tree, "hooks_dir")
	return says
}

// DefaultHandler is the handler of containers that choose none, other than gpuledger's.
func (c CRIO) DefaultHandler() DefaultHandler {
	tree := c.Tree()
	was := DefaultHandler{Tree: tree, Name: configfile.Text(tree, "crio", "runtime", "default_runtime"),
		Roots: []string{"/run/runc", "/run/crun"}}
	if was.Name == "" || was.Name == Handler {
		was.Name = "crun" // the default since CRI-O 1.31; before that it was runc
		if configfile.Table(tree, "crio", "runtime", "runtimes", "crun") == nil &&
			configfile.Table(tree, "crio", "runtime", "runtimes", "runc") != nil {
			was.Name = "runc"
		}
	}
	was.Settings = configfile.Table(tree, "crio", "runtime", "runtimes", was.Name)
	if was.Kind = configfile.Text(was.Settings, "runtime_type"); was.Kind == "oci" {
		was.Kind = ""
	}
	was.Binary = configfile.Text(was.Settings, "runtime_path")
	switch {
	case was.Binary != "":
	case was.Name == "crun", was.Name == "runc":
		was.Search = configfile.Union([]string{was.Name}, "crun", "runc")
	default:
		was.Binary = was.Name // CRI-O looks for the handler's name in its PATH
	}
	for _, handler := range configfile.Table(tree, "crio", "runtime", "runtimes") {
		settings, _ := handler.(map[string]any)
		if root := configfile.Text(settings, "runtime_root"); root != "" {
			was.Roots = configfile.Union(was.Roots, root)
		}
	}
	slices.Sort(was.Roots)
	return was
}
