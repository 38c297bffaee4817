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
	system filetree.System
}

var podmanKeys = []HandlerKeys{{Handlers: []string{"engine", "runtimes"},
	Default: []string{"engine", "runtime"}}}

func readPodman(in Installation) (Configuration, error) {
	ours, files := podmanFiles(in)
	d, err := readDropIns(in.System, ours, files)
	return Podman{d, in.System}, err
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

// podmanFiles are gpuledger's file and all files that Podman reads, in Podman's order.
func podmanFiles(in Installation) (ours string, files []string) {
	main := in.MainFile()
	dir := main + ".d"
	ours = filepath.Join(dir, DropIn+".conf")
	return ours, sortedWith(in.System.Glob(dir+"/*.conf"), ours, "/usr/share/containers/containers.conf",
		main)
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
