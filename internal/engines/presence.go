package engines

import (
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
	// its builds of images may name CDI devices, and no wrapper judges their steps
	CDIBuilds bool
	// the pattern by which handler gpuledger passes on the UID that a pod claims to have, where the
	// engine does not write it; "": there is none
	PassesUID string
	Err       error // why its configuration cannot be read
}

// HookDirs are the hooks directories that engines read where their files name none.
var HookDirs = []string{"/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"}

// Find finds the engines of the system below root; "/" is this machine. It writes nothing.
func Find(root string) []Presence {
	var all []Presence
	here := filetree.System{Root: root}
	for _, engine := range All {
		e := Of(engine)
		in := Installation{Engine: engine, System: here}
		p := Presence{Engine: engine, Name: e.Name, Program: here.Program(e.Program)}
		if e.Daemon != "" && root == "/" {
			p.PIDs = processes(e.Daemon, "mnt")
		}
		if in.File = fileOf(p.PIDs); in.File == "" {
			in.File, _ = in.FindFile("")
		}
		p.File = in.MainFile()
		if p.Program == "" && len(p.PIDs) == 0 && !here.Exists(p.File) {
			continue
		}
		c, err := in.Read()
		says := c.InForce()
		if says.Absent {
			continue
		}
		p.Handlers, p.Default, p.CDIDirs, p.HookDirs, p.Err = says.Handlers, says.Default, says.CDIDirs,
			says.HookDirs, err
		p.CDIBuilds, p.PassesUID = says.CDIBuilds, says.PassesUID
		all = append(all, p)
	}
	return all
}

// FindProgram is the path of a program on this machine. A name with a slash is the path itself; any
// other name is searched where engines search. It is "" if there is no such program.
func FindProgram(name string) string { return filetree.System{Root: "/"}.Program(name) }
