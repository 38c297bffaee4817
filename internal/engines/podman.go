package engines

import (
	"path/filepath"
	"slices"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/filetree"
)

// Podman is the configuration of Podman, Buildah and other programs that read
// containers.conf.
type Podman struct {
	DropIns
	// Linked is the directory of the drop-in files if that is a symbolic link; else "". Podman
	// does not follow that link, and reads no drop-in file (filepath.WalkDir in containers/common,
	// pkg/config).
	Linked string
	system filetree.System
}

var podmanKeys = []HandlerKeys{{Handlers: []string{"engine", "runtimes"},
	Default: []string{"engine", "runtime"}}}

func readPodman(in Installation) (Configuration, error) {
	main := in.MainFile()
	dir := main + ".d"
	c := Podman{system: in.System}
	names := in.System.Glob(dir + "/*.conf")
	if in.System.IsLink(dir) {
		c.Linked, names = dir, nil
	}
	ours := filepath.Join(dir, DropIn+".conf")
	var err error
	c.DropIns, err = readDropIns(in.System, ours, sortedWith(names, ours,
		"/usr/share/containers/containers.conf", main))
	if c.Linked != "" {
		c.Files = slices.DeleteFunc(c.Files, func(path string) bool { return path == ours })
	}
	return c, err
}

// InForce is what the files say.
func (c Podman) InForce() Settings {
	tree := configfile.Table(c.Tree(), "engine")
	says := Settings{Default: configfile.Text(tree, "runtime"), Handlers: map[string]string{}}
	for name := range configfile.Table(tree, "runtimes") {
		paths, _ := configfile.Texts(tree, "runtimes", name)
		says.Handlers[name] = c.system.FirstProgram(paths)
		if says.Handlers[name] == "" && len(paths) > 0 {
			says.Handlers[name] = paths[0]
		}
	}
	says.CDIDirs, _ = configfile.Texts(tree, "cdi_spec_dirs")
	says.HookDirs, _ = configfile.Texts(tree, "hooks_dir")
	return says
}

// DefaultHandler is the handler of containers that choose none, other than gpuledger's.
func (c Podman) DefaultHandler() DefaultHandler {
	tree := c.Tree()
	was := DefaultHandler{Tree: tree, Name: configfile.Text(tree, "engine", "runtime"),
		Roots: []string{"/run/crun", "/run/runc"}}
	paths, _ := configfile.Texts(tree, "engine", "runtimes", was.Name)
	switch i := slices.IndexFunc(paths, c.system.Exists); {
	case was.Name == "" || was.Name == Handler:
		was.Search = []string{"crun", "runc"}
	case filepath.IsAbs(was.Name):
		was.Binary = was.Name
	case i >= 0:
		was.Binary = paths[i]
	case was.Name == "crun", was.Name == "runc":
		was.Search = []string{was.Name}
	default:
		was.Binary = was.Name
	}
	return was
}
