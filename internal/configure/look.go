package configure

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// Presence is what one engine's configuration files and processes say about gpuledger.
type Presence struct {
	Engine   grant.Engine
	Name     string            // the engine's name for `gpuledger configure`
	Program  string            // the engine's program; "" if only its configuration is found
	PIDs     []int             // of the engine's processes
	File     string            // its main configuration file
	Handlers map[string]string // the program of each runtime handler; "" if the file names none
	Default  string            // for containers that choose no handler; "" if no file names it
	CDIDirs  []string          // where its files say so
	HookDirs []string          // where its files say so
	Err      error             // why its configuration cannot be read
}

// engineFacts is what an engine's files say; see Presence.
type engineFacts struct {
	handlers          map[string]string
	byDefault         string
	cdiDirs, hookDirs []string
	// the engine runs no containers of its own, as a containerd that only serves Docker
	absent bool
}

// Look finds the engines of the system below root; "/" is this machine. It writes nothing.
func Look(root string) []Presence {
	var all []Presence
	here := filetree.System{Root: root}
	for _, engine := range containerEngines {
		e := engines[engine]
		p := Presence{Engine: engine, Name: e.suffix, Program: here.Program(e.program), File: e.file}
		if e.daemon != "" && root == "/" {
			p.PIDs = processes(e.daemon)
		}
		plan := &Plan{options: Options{Engine: engine, Root: root}, system: here}
		if file, _ := plan.findMain(record{}); file != "" {
			p.File = file
		}
		if file := fileOf(p.PIDs); file != "" {
			p.File = file
		}
		plan.options.File = p.File
		if p.Program == "" && len(p.PIDs) == 0 && !here.Exists(p.File) {
			continue
		}
		c, err := e.read(plan)
		facts := c.inForce()
		if facts.absent {
			continue
		}
		p.Handlers, p.Default, p.CDIDirs, p.HookDirs, p.Err = facts.handlers, facts.byDefault, facts.cdiDirs,
			facts.hookDirs, err
		all = append(all, p)
	}
	return all
}

// Find is the path of a program. A name with a slash is the path itself; any other name is searched
// where engines search. It is "" if there is no such program.
func Find(name string) string { return filetree.System{Root: "/"}.Program(name) }

// fileOf is the configuration file that a running engine's arguments name; "" if they name none.
func fileOf(pids []int) string {
	for _, pid := range pids {
		line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		if file := configOf(strings.Split(strings.TrimSuffix(string(line), "\x00"),
			"\x00")); filepath.IsAbs(file) {
			return file
		}
	}
	return ""
}

// handlers are the programs of a table's handlers, by handler.
func handlers(all map[string]any, program func(map[string]any) string) map[string]string {
	programs := map[string]string{}
	for name, settings := range all {
		handler, _ := settings.(map[string]any)
		programs[name] = program(handler)
	}
	return programs
}
