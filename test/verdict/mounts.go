package verdict

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// lookup follows links: the file, and its path without links.
func (n Node) lookup(name string) (File, string, bool) {
	name = path.Clean(name)
	for range 10 {
		file, ok := n.Files[name]
		if !ok {
			// a link above it
			dir, rest := name, ""
			for dir != "/" && dir != "." {
				dir, rest = path.Dir(dir), path.Join(path.Base(dir), rest)
				if above, ok := n.Files[dir]; ok && above.Link != "" {
					name = path.Join(dir, "..", above.Link, rest)
					if path.IsAbs(above.Link) {
						name = path.Join(above.Link, rest)
					}
					file, ok = n.Files[name]
					return file, name, ok
				}
			}
			return File{}, name, false
		}
		if file.Link == "" {
			return file, name, true
		}
		if path.IsAbs(file.Link) {
			name = path.Clean(file.Link)
		} else {
			name = path.Join(path.Dir(name), file.Link)
		}
	}
	return File{}, name, false
}

func within(name, dir string) bool {
	return name == dir || dir == "/" || strings.HasPrefix(name, dir+"/")
}

// usual are the usual places of MPS daemons: a mount of one is refused whatever is there (ADR 9).
var usual = []string{"/tmp/nvidia-mps", "/run/nvidia-mps", "/run/nvidia/mps/nvidia.com/gpu/pipe"}

func isBind(m specs.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

// mounts: gpu-bind-mount, gpu-socket, and NVIDIA's list of devices by mounts.
func (f *finder) mounts() {
	for _, m := range f.spec.Mounts {
		for _, prefix := range []string{"/var/run/nvidia-container-devices",
			"/run/nvidia-container-devices"} {
			if rest, ok := strings.CutPrefix(path.Clean(m.Destination), prefix); ok && rest != "" &&
				!f.id.Sandbox {
				f.names([]string{strings.TrimPrefix(rest, "/")}, false)
			}
		}
		switch {
		case isBind(m):
			f.bind(m.Source)
		case m.Type == "overlay":
			for _, option := range m.Options {
				for _, layer := range []string{"lowerdir=", "upperdir="} {
					if dirs, ok := strings.CutPrefix(option, layer); ok {
						for dir := range strings.SplitSeq(dirs, ":") {
							f.bind(dir)
						}
					}
				}
			}
		}
	}
	if f.spec.Root != nil {
		root := f.spec.Root.Path
		if !f.governed(root) && f.node.Rootless && within(f.node.Dev, root) {
			f.parent() // also as root file system (ADR 50)
		}
	}
}

// governed adds a hit for a directory of gpuledger or a usual place of an MPS daemon.
func (f *finder) governed(source string) bool {
	_, real, _ := f.node.lookup(source)
	if within(real, f.policy.StateDir) || within(real, f.policy.RunDir) || slices.Contains(usual, real) {
		f.add(Hit{Code: GPUSocket})
		return true
	}
	return false
}

func (f *finder) bind(source string) {
	if f.governed(source) {
		return
	}
	if strings.HasPrefix(source, "/proc/self/") || strings.HasPrefix(source, "/proc/thread-self/") {
		f.add(Hit{Code: GPUBindMount})
		return
	}
	file, real, _ := f.node.lookup(source)
	if p, ok := f.node.part(file.Device); ok && file.Device != (Number{}) {
		h := Hit{Code: GPUBindMount, Parts: []Part{p}}
		if p.kind == "modeset" {
			h.Unclear = "a bind mount of nvidia-modeset"
		}
		f.add(h)
		return
	}
	if within(f.node.Dev, real) {
		f.parent()
	}
}

// parent is a mount of the node's /dev or what is above it: it reaches what the device rules
// open. In a privileged container it is a part of the privilege; where no rule is enforced it
// reaches all.
func (f *finder) parent() {
	switch {
	case f.node.Rootless:
		f.add(Hit{Code: GPUBindMount, Parent: true})
	case f.open.reaches():
		h := Hit{Code: GPUBindMount, Privileged: f.privileged(), Parent: true,
			Unclosed: f.open.unclosed && namespace(f.spec, specs.UserNamespace),
			Narrow:   f.open.unclosed && !f.open.all && !f.open.wide}
		if f.privileged() {
			h.Code = PrivilegedGPU
		}
		if !f.open.unclosed && !f.open.all && !f.open.wide {
			for _, d := range f.open.exact {
				p, _ := f.node.part(d)
				h.Parts = append(h.Parts, p)
			}
		}
		f.add(h)
	}
}
