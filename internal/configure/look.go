package configure

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Presence is how an engine of a system stands to gpuledger, by its configuration files.
type Presence struct {
	Engine   grant.Engine
	Name     string            // as `gpuledger configure` takes it
	Program  string            // the engine's own; "" where only its configuration is there
	PIDs     []int             // of its processes
	File     string            // its main configuration file
	Handlers map[string]string // the programs behind runtime handlers, "" where the file names none
	Default  string            // the handler of containers that choose none; "" where no file says
	CDIDirs  []string          // where its files say so
	HookDirs []string          // where its files say so
	Err      error             // its configuration cannot be read
}

// engineFacts is what an engine's files say; see Presence.
type engineFacts struct {
	handlers          map[string]string
	byDefault         string
	cdiDirs, hookDirs []string
	absent            bool // the engine runs no containers of its own, as the containerd that serves Docker only
}

// readers give what engines read; each follows the plan of its engine.
var readers = map[grant.Engine]func(*Plan) (engineFacts, error){
	grant.Containerd: (*Plan).readContainerdFacts, grant.CRIO: (*Plan).readCRIOFacts,
	grant.Podman: (*Plan).readPodmanFacts, grant.Docker: (*Plan).readDockerFacts,
}

// Look finds the engines of the system below root, "/" for this machine. Nothing is written.
func Look(root string) []Presence {
	var all []Presence
	here := system{root}
	for _, engine := range []grant.Engine{grant.Containerd, grant.CRIO, grant.Podman, grant.Docker} {
		e := engines[engine]
		p := Presence{Engine: engine, Name: e.suffix, Program: here.program(e.program), File: e.file}
		if e.daemon != "" && root == "/" {
			p.PIDs = processes(e.daemon)
		}
		if file := fileOf(p.PIDs); file != "" {
			p.File = file
		}
		plan := &Plan{options: Options{Engine: engine, Root: root, File: p.File}, system: here}
		if p.Program == "" && len(p.PIDs) == 0 && !here.exists(p.File) {
			continue
		}
		facts, err := readers[engine](plan)
		if facts.absent {
			continue
		}
		p.Handlers, p.Default, p.CDIDirs, p.HookDirs, p.Err = facts.handlers, facts.byDefault, facts.cdiDirs, facts.hookDirs, err
		all = append(all, p)
	}
	return all
}

// Find gives the path of a program: the name itself where it is a path, else the first of its name where engines look.
// "" if there is none.
func Find(name string) string { return system{"/"}.program(name) }

func (s system) program(name string) string {
	return (&Plan{system: s}).firstRuntime([]string{name})
}

// fileOf is the configuration file that a running engine's arguments name, "" where they name none.
func fileOf(pids []int) string {
	for _, pid := range pids {
		line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		if file := configOf(strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")); filepath.IsAbs(file) {
			return file
		}
	}
	return ""
}

// ourProgram is the wrapper's name, with which the names of the links to it begin.
const ourProgram = "gpuledger-runtime"

// namedIn are the places in an engine's files that name our runtime, as "file:line", whether or not the engine could read them.
func namedIn(o Options) (places []string) {
	if e := engines[o.Engine]; o.File == "" && o.Root == "/" && e.daemon != "" {
		o.File = fileOf(processes(e.daemon))
	}
	p := &Plan{options: o, system: system{o.Root}}
	for _, path := range p.files() {
		_, c, err := p.load(path)
		if err != nil {
			continue
		}
		for i, line := range strings.Split(string(c.data), "\n") {
			if strings.Contains(line, ourProgram) && !strings.HasPrefix(strings.TrimSpace(line), "#") {
				places = append(places, fmt.Sprintf("%s:%d", path, i+1))
			}
		}
	}
	return places
}

// files are all that an engine reads.
func (p *Plan) files() []string {
	main := p.mainFile()
	switch p.options.Engine {
	case grant.CRIO:
		return append([]string{main}, p.system.glob(filepath.Join(filepath.Dir(main), "crio.conf.d/*"))...)
	case grant.Podman:
		_, files := p.podmanFiles()
		return files
	case grant.Containerd:
		files := []string{main}
		c, _ := p.readContainerd() // of one that it refuses it has read some
		for _, f := range c.files {
			files = union(files, f.path)
		}
		return files
	}
	return []string{main}
}

func (p *Plan) readContainerdFacts() (engineFacts, error) {
	c, err := p.readContainerd()
	if err != nil {
		return engineFacts{absent: c.withoutCRI() != ""}, err
	}
	section := c.effective()
	facts := engineFacts{byDefault: text(section, "containerd", "default_runtime_name")}
	facts.handlers = handlers(table(section, "containerd", "runtimes"), func(h map[string]any) string { return text(h, "options", "BinaryName") })
	facts.cdiDirs, _ = texts(section, "cdi_spec_dirs")
	return facts, nil
}

func (p *Plan) readCRIOFacts() (engineFacts, error) {
	main := p.mainFile()
	dir := filepath.Join(filepath.Dir(main), "crio.conf.d")
	ours := filepath.Join(dir, dropIn+".conf")
	d, err := p.readDropIns(ours, sortedWith(p.system.glob(dir+"/*"), ours, main))
	if err != nil {
		return engineFacts{}, err
	}
	tree := table(d.with(), "crio", "runtime")
	facts := engineFacts{byDefault: text(tree, "default_runtime")}
	facts.handlers = handlers(table(tree, "runtimes"), func(h map[string]any) string { return text(h, "runtime_path") })
	facts.cdiDirs, _ = texts(tree, "cdi_spec_dirs")
	facts.hookDirs, _ = texts(tree, "hooks_dir")
	return facts, nil
}

func (p *Plan) readPodmanFacts() (engineFacts, error) {
	ours, files := p.podmanFiles()
	d, err := p.readDropIns(ours, files)
	if err != nil {
		return engineFacts{}, err
	}
	tree := table(d.with(), "engine")
	facts := engineFacts{byDefault: text(tree, "runtime"), handlers: map[string]string{}}
	for name := range table(tree, "runtimes") {
		paths, _ := texts(tree, "runtimes", name)
		facts.handlers[name] = p.firstRuntime(paths)
		if facts.handlers[name] == "" && len(paths) > 0 {
			facts.handlers[name] = paths[0]
		}
	}
	facts.cdiDirs, _ = texts(tree, "cdi_spec_dirs")
	facts.hookDirs, _ = texts(tree, "hooks_dir")
	return facts, nil
}

func (p *Plan) readDockerFacts() (engineFacts, error) {
	_, c, err := p.load(p.mainFile())
	if err != nil {
		return engineFacts{}, err
	}
	d, err := parseJSON(c.data)
	if err != nil {
		return engineFacts{}, fmt.Errorf("cannot read %s:%w", p.mainFile(), err)
	}
	facts := engineFacts{byDefault: text(d.tree, "default-runtime")}
	facts.handlers = handlers(table(d.tree, "runtimes"), func(h map[string]any) string { return text(h, "path") })
	facts.cdiDirs, _ = texts(d.tree, "cdi-spec-dirs")
	return facts, nil
}

// handlers are the programs behind the handlers of a table.
func handlers(all map[string]any, program func(map[string]any) string) map[string]string {
	programs := map[string]string{}
	for name, settings := range all {
		handler, _ := settings.(map[string]any)
		programs[name] = program(handler)
	}
	return programs
}

// with is the configuration with our own file.
func (d dropIns) with() map[string]any {
	trees := maps.Clone(d.trees)
	trees[d.ours] = d.doc.tree
	return dropIns{files: slices.Clone(d.files), trees: trees}.without()
}
